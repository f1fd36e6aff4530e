import jax.numpy as jnp
import numpy as np
import pytest

from kimi.reference.state import initial_state
from kimi.tiny.training.generation import Generator

PAD, LENGTH = 2047, 24
PROMPTS = [[5, 9, 1000], list(range(100, 109)), [7]]


@pytest.fixture(scope="module")
def free(run, target_model, target_weights):
    """Greedy continuations that nothing stops."""
    generator = Generator(target_model, run.config, frozenset({PAD}), PAD)
    return generator(target_weights, PROMPTS, LENGTH)


def test_greedy_is_the_argmax_of_the_whole_sequence(run, target_model, target_weights, free):
    model = target_model.merge(target_weights)
    for ids, prompt, length in zip(*free, strict=True):
        assert length == LENGTH
        out = model(jnp.asarray(ids), initial_state(run.config, LENGTH, jnp.float32))
        best = np.asarray(model.logits(out.hidden).argmax(-1))
        assert (ids[prompt:] == best[prompt - 1 : -1]).all()
    for ids, prompt in zip(free.ids, PROMPTS, strict=True):
        assert ids[: len(prompt)].tolist() == prompt


def test_stop_ids_end_a_sequence_but_not_a_prompt(run, target_model, target_weights, free):
    stop = int(free.ids[0, 8])
    prompts = [[stop, *PROMPTS[0][1:]], PROMPTS[0]]
    generator = Generator(target_model, run.config, frozenset({stop, PAD}), PAD)
    found = generator(target_weights, prompts, LENGTH)
    first = int(np.argmax(free.ids[0] == stop))
    assert found.lengths[1] == first + 1
    assert (found.ids[1, : first + 1] == free.ids[0, : first + 1]).all()
    assert (found.ids[1, first + 1 :] == PAD).all()
    assert found.lengths[0] > 3


def test_sampling_differs_by_row_and_repeats_by_seed(run, target_model, target_weights, free):
    generator = Generator(target_model, run.config, frozenset({PAD}), PAD)
    temperature = np.array([0, 1, 1], np.float32)
    one, same, other = (
        generator(target_weights, PROMPTS, LENGTH, temperature=temperature, seed=seed).ids
        for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert (one[0] == free.ids[0]).all() and (other[0] == free.ids[0]).all()
    assert (one[1] != free.ids[1]).any() and (one[1] != other[1]).any()
