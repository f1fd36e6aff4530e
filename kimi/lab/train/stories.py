"""Generated nine-part stories about an animal that finds, loses or shares something."""

import random

from kimi.lab.train.people import NAMES, pronouns

ANIMALS = "fox dog cat rabbit bird mouse bear duck horse frog lamb owl hen goat squirrel".split()
_ADJECTIVES = "little brown small grey young old quiet brave clever kind happy sleepy".split()
_PLACES = "forest,garden,meadow,village,river,hill,barn,lake,old mill,orchard".split(",")
_TREASURES = (
    "red ball,silver key,blue kite,warm scarf,little boat,golden bell,picture book,wooden box,"
    "basket of apples,paper lantern"
).split(",")
_WEATHER = "sunny rainy cold windy warm snowy".split()

# One sentence is drawn from each group, in this order.
_SENTENCES = (
    (
        "Once upon a time there was a {adjective} {animal} named {name}.",
        "There once lived a {adjective} {animal} whose name was {name}.",
        "{name} was a {adjective} {animal}.",
        "Long ago a {adjective} {animal} called {name} lived near the {place}.",
    ),
    (
        "{name} lived in a small house by the {place}.",
        "Every day {he} walked to the {place}.",
        "{He} loved to play near the {place}.",
        "{He} had a good friend named {friend}.",
    ),
    (
        "One {weather} morning {name} went out to look for {his} {treasure}.",
        "One {weather} day {he} found a {treasure} under a tree.",
        "One {weather} evening {he} lost {his} {treasure} on the way home.",
        "On a {weather} day {friend} gave {him} a {treasure}.",
    ),
    (
        "{He} looked behind the stones and under the leaves.",
        '"What a fine {treasure}," said {name}.',
        '"Where could it have come from?" {he} asked.',
        "{He} did not know what to do.",
        "{He} was very proud of it and showed it to everyone.",
    ),
    (
        "Just then {friend} came down the path.",
        "Then {he} heard a voice. It was {friend}.",
        "{He} ran to {friend} and told the whole story.",
        "After a while {friend} came to help.",
    ),
    (
        '"Do not be sad," said {friend}. "We will look for it together."',
        '"May I see it?" asked {friend}.',
        '"I know just what to do," said {friend}.',
        '"Let us take it to the {place}," said {friend}.',
    ),
    (
        "They walked a long way and talked about many things.",
        "They worked until the sun went down.",
        "Together they crossed the bridge and climbed the hill.",
        "They sat down in the grass and shared some bread.",
    ),
    (
        "At last they found the {treasure}, and {name} laughed with joy.",
        "In the end the {treasure} was safe, and both of them were glad.",
        "When night came, {name} put the {treasure} on a shelf by the window.",
        "Then {name} gave the {treasure} to {friend}, because friends like to share.",
    ),
    (
        "From that day on, {name} and {friend} were the best of friends.",
        "That night {name} slept very well.",
        "And {name} never forgot how kind {friend} had been.",
        "{name} learned that it is good to ask for help.",
        "And they were happy for a long time.",
    ),
)


def sample(rng: random.Random, name: str | None = None, animal: str | None = None) -> str:
    """Draw one story on one line.

    Args:
      rng: source of randomness; equal states give equal stories.
      name: the hero, one of `kimi.lab.train.people.NAMES`; drawn when None.
      animal: what the hero is; drawn when None.
    """
    name = name or rng.choice(NAMES)
    animal = animal or rng.choice(ANIMALS)
    adjective = rng.choice(_ADJECTIVES)
    friend = rng.choice([other for other in NAMES if other != name])
    place = rng.choice(_PLACES)
    treasure = rng.choice(_TREASURES)
    weather = rng.choice(_WEATHER)
    pronoun = pronouns(name)
    return " ".join(
        rng.choice(group).format(
            name=name,
            animal=animal,
            adjective=adjective,
            friend=friend,
            place=place,
            treasure=treasure,
            weather=weather,
            He=pronoun.He,
            he=pronoun.he,
            his=pronoun.his,
            him=pronoun.him,
        )
        for group in _SENTENCES
    )
