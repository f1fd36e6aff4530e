import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.lab.train.generation import Generator
from kimi.reference.state import initial_state

PAD, LENGTH = 2047, 24
STOPS = frozenset({*range(150), PAD})  # so many that some sequences are stopped
PROMPTS = [[5, 900, 1000], list(range(300, 309)), [7], [1500, 3]]


@pytest.fixture(scope="module")
def generate(run, target_model, target_weights):
    generator = Generator(target_model, run.config, STOPS, PAD)

    def call(**options):
        return generator(target_weights, PROMPTS, LENGTH, **options)

    return call


def test_greedy_is_the_argmax_of_the_whole_sequence(run, target_model, target_weights, generate):
    model = target_model.merge(target_weights)
    state = initial_state(run.config, LENGTH, jnp.float32)
    best = jax.jit(lambda ids: model.logits(model(ids, state).hidden).argmax(-1))
    stopped = 0
    for (ids, first, length), prompt in zip(zip(*generate(), strict=True), PROMPTS, strict=True):
        assert ids[:first].tolist() == prompt  # stop ids in a prompt stop nothing
        expected = np.asarray(best(jnp.asarray(ids)))
        assert (ids[first:length] == expected[first - 1 : length - 1]).all()
        assert (ids[length:] == PAD).all()
        stops = [i for i in range(first, length) if int(ids[i]) in STOPS]
        assert stops in ([], [length - 1]) and (stops or length == LENGTH)
        stopped += len(stops)
    assert 0 < stopped


def test_sampling_differs_by_row_and_repeats_by_seed(generate):
    temperature = np.array([0, 0, 1, 1], np.float32)
    greedy = generate().ids
    one, same, other = (generate(temperature=temperature, seed=s).ids for s in (1, 1, 2))
    assert (one == same).all()
    assert (one[:2] == greedy[:2]).all() and (other[:2] == greedy[:2]).all()
    assert (one[2:] != greedy[2:]).any(1).all() and (one[2:] != other[2:]).any(1).all()
