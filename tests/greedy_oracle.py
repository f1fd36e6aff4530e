"""Greedy decoding in a few lines, independent of the decoding loop, which is compared with it."""

import jax
import jax.numpy as jnp

from kimi.reference.model import K3
from kimi.reference.state import initial_state, rollback
from tests.programs import compiled


def greedy(target, config, prompt, count, stop_ids=frozenset()):
    """The tokens behind a prompt, one call of the model a token."""
    state, tokens = initial_state(config, len(prompt) + count, jnp.float32), list(prompt)
    step = compiled(K3.rows, target)
    for place in range(len(prompt) + count - 1):
        out = step(jnp.asarray(tokens[place : place + 1], jnp.int32), state)
        state = rollback(out.state, state.length, jnp.int32(1))
        if place + 1 == len(tokens):
            tokens.append(int(jnp.argmax(target.logits(out.hidden)[0])))
            if tokens[-1] in stop_ids:
                break
    return jax.tree.map(int, tokens[len(prompt) :])
