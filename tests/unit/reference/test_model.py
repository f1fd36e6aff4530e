"""The whole model on the small K3: prefill, steps, blocks, roll-back, padding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.reference.model import K3
from kimi.reference.state import MlaCache, ModelState, initial_state, rollback
from tests.programs import compiled
from tests.tolerances import MODEL_ORDERS

TEXT = (
    "Once upon a time there was a small fox named Lena. She lived near the old mill by the river, "
    "and every evening she walked through the meadow to see what the village was doing."
)


@pytest.fixture(scope="module")
def run(tiny):
    """Jitted prefill and rows, and the ids of a text."""
    prefill = compiled(K3.__call__, tiny.runner.target)
    rows = compiled(K3.rows, tiny.runner.target)
    ids = np.asarray(tiny.tokenizer.encode(TEXT), np.int32)
    assert len(ids) >= 24
    return prefill, rows, ids


def fresh(tiny) -> ModelState:
    return initial_state(tiny.config, 64, jnp.float32)


def assert_states_close(a: ModelState, b: ModelState) -> None:
    """Live parts only: cache rows from the length on are dead."""
    assert int(a.length) == int(b.length)
    for x, y in zip(a.layers, b.layers, strict=True):
        if isinstance(x, MlaCache):
            x, y = (MlaCache(s.latent[: int(a.length)]) for s in (x, y))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=MODEL_ORDERS), x, y)


# Around the chunk border of 16, and fewer tokens than the convolution has history.
@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17])
def test_prefill_equals_steps(tiny, run, count):
    prefill, rows, ids = run
    padded = np.concatenate([ids[:count], np.full(32 - count, 999, np.int32)])
    out = prefill(jnp.asarray(padded), fresh(tiny), jnp.int32(count))
    state, hidden = fresh(tiny), []
    for token in ids[:count]:
        step = rows(jnp.asarray([token]), state)
        state = rollback(step.state, state.length, jnp.int32(1))
        hidden.append(step.hidden)
    a = tiny.runner.target.logits(out.hidden[:count])
    b = tiny.runner.target.logits(jnp.concatenate(hidden))
    np.testing.assert_allclose(a, b, rtol=0, atol=MODEL_ORDERS)
    assert_states_close(out.state, state)


def test_prefill_in_two_parts_equals_one(tiny, run):
    """A conversation goes on from its state as if it had been read at once."""
    prefill, _, ids = run
    ids = ids[:24]
    whole = prefill(jnp.asarray(np.pad(ids, (0, 8))), fresh(tiny), jnp.int32(24))
    state = fresh(tiny)
    for start, stop in ((0, 13), (13, 24)):
        part = np.pad(ids[start:stop], (0, 32 - (stop - start)))
        out = prefill(jnp.asarray(part), state, jnp.int32(stop - start))
        state = out.state
    assert_states_close(whole.state, state)


@pytest.mark.parametrize("kept", range(1, 9))
def test_rollback_is_exact(tiny, run, kept):
    """What was rejected leaves no trace: bit-equal states whatever the rejected tokens were."""
    prefill, rows, ids = run
    start = prefill(jnp.asarray(ids[:16]), fresh(tiny), jnp.int32(16)).state
    rng = np.random.default_rng(kept)
    states = []
    for _ in range(2):
        block = ids[16:24].copy()
        block[kept:] = rng.integers(0, tiny.config.vocab_size, 8 - kept)
        out = rows(jnp.asarray(block), start)
        states.append(rollback(out.state, start.length, jnp.int32(kept)))
    a, b = states
    for x, y in zip(a.layers, b.layers, strict=True):
        if isinstance(x, MlaCache):
            np.testing.assert_array_equal(x.latent[: 16 + kept], y.latent[: 16 + kept])
        else:
            jax.tree.map(np.testing.assert_array_equal, x, y)
    # ... and what goes on from them is the same bit by bit, dead cache rows or not.
    after = [rows(jnp.asarray(ids[:1]), s).hidden for s in states]
    np.testing.assert_array_equal(after[0], after[1])
    # It is the state of decoding those rows one at a time.
    state = start
    for token in ids[16 : 16 + kept]:
        out = rows(jnp.asarray([token]), state)
        state = rollback(out.state, state.length, jnp.int32(1))
    assert_states_close(a, state)


def test_nothing_leaks_between_sequences(tiny, run):
    """A batch is independent sequences: vmap equals one by one."""
    _, rows, ids = run
    batch = np.stack([ids[:8], ids[4:12]])
    state = jax.tree.map(lambda x: jnp.stack([x, x]), fresh(tiny))
    batched = compiled(
        lambda target, t, s: jax.vmap(lambda t, s: target.rows(t, s).hidden)(t, s),
        tiny.runner.target,
    )
    for row, tokens in zip(batched(jnp.asarray(batch), state), batch, strict=True):
        alone = rows(jnp.asarray(tokens), fresh(tiny)).hidden
        np.testing.assert_allclose(
            tiny.runner.target.logits(row),
            tiny.runner.target.logits(alone),
            rtol=0,
            atol=MODEL_ORDERS,
        )
