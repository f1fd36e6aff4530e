import hashlib
import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.lab.train import stories
from kimi.lab.train.people import NAMES, pronouns


def test_sequence_is_frozen():
    rng = random.Random(7)
    sampled = [stories.sample(rng) for _ in range(200)]
    assert sampled[0] == (
        "Once upon a time there was a quiet cat named Kate. She loved to play near the forest. "
        "One warm morning Kate went out to look for her silver key. She was very proud of it and "
        'showed it to everyone. Then she heard a voice. It was Nina. "Do not be sad," said Nina. '
        '"We will look for it together." They walked a long way and talked about many things. '
        "Then Kate gave the silver key to Nina, because friends like to share. Kate learned that "
        "it is good to ask for help."
    )
    digest = hashlib.sha256(json.dumps(sampled).encode()).hexdigest()
    assert digest == "cd47c2bf9774adc2881c9a43cbc6bedc2133e117236c083f1923e3d5dff36317"


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    name=st.sampled_from(NAMES),
    animal=st.sampled_from(stories.ANIMALS),
)
def test_story_is_about_the_given_hero_and_one_friend(seed: int, name: str, animal: str):
    story = stories.sample(random.Random(seed), name, animal)
    assert f" {animal}" in story.split(".")[0]
    words = {word.strip('.,"?') for word in story.split()}
    assert name in words
    assert len(words & set(NAMES)) == 2
    assert not any(c in story for c in "{}\n")


def test_pronouns_follow_the_name():
    assert pronouns("Mia").his == "her"
    assert pronouns("Tom").He == "He"
