"""Placed models with a drafter, and the token-by-token path that prompts are compared with."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh as DeviceMesh

from kimi.decoding.backend import Decision
from kimi.decoding.programs import Programs
from kimi.decoding.requests import request, row_counts
from kimi.decoding.sampling import Sampling
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft.layout import DraftLayout, DraftWeights
from kimi.kernels.layout import Layout, Weights
from kimi.kernels.mesh import default_mesh
from kimi.runtime.backend import BlockBackend
from kimi.runtime.model import DeviceModel
from tests.interpret.small import small_config, small_tensors
from tests.packing import ring
from tests.packing.target import pack
from tests.unit.kernels_draft.build import draft_config, random_drafter


def small_model() -> DeviceModel:
    """Random, on one device; blocks of four rows, a window of 96."""
    config = small_config()
    drafter = draft_config(
        96, vocab_size=2048, hidden_size=128, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, rank=32, taps=[1, 2, 3],
        block=4, mask_token_id=7,
    )  # fmt: skip
    layout = Layout(config, default_mesh(config, 1))
    draft_layout = DraftLayout(drafter, config, layout.mesh)
    packed = pack(layout, small_tensors(config), 0)
    drafts = draft_layout.pack(random_drafter(drafter), 0)
    return DeviceModel(
        layout,
        Weights(*(jnp.asarray(w)[None] for w in packed)),
        draft_layout,
        DraftWeights(*(jnp.asarray(w)[None] for w in drafts)),
        DeviceMesh(np.array(jax.devices()[:1]), (AXIS,)),
    )


class Decoding:
    """The programs of a model, with prompts by decoding for comparison.

    Args:
      capacity: tokens of a sequence.
    """

    def __init__(self, model: DeviceModel, capacity: int):
        self.backend = BlockBackend(model, capacity)
        self.programs = Programs(self.backend, steps=4)
        self._decode = self.backend.compile("step by step", self._step_by_step, 2)

    def _step_by_step(self, weights, state, prompt, count):
        """A kernel call per token; the drafter commits the one before."""
        backend, valid = self.backend, jnp.ones(1, jnp.int32)

        def accepted(scores):
            return Decision(scores.best[:, 0], valid, ())

        def body(carry):
            done, state = carry
            state, _ = backend.draft(weights, state)
            rows = jnp.zeros((1, backend.block), jnp.int32).at[0, 0].set(prompt[done])
            state, _ = backend.verify(weights, state, rows, valid, (backend.block,), accepted)
            return done + 1, state

        return lax.while_loop(lambda c: c[0] < count, body, (jnp.int32(0), state))[1]

    def prefill(self, tokens):
        """The state behind tokens, by the programs."""
        return self.programs.start([tokens])

    def decode(self, tokens):
        """The same, token by token."""
        backend = self.backend
        padded = np.zeros(backend.plan.settings.context, np.int32)
        padded[: len(tokens) - 1] = tokens[:-1]
        state = self._decode(
            backend.weights, backend.place(backend.empty()), padded, np.int32(len(tokens) - 1)
        )
        # Placed as those of `prefill` are: `run` is compiled once.
        return backend.place(replace(state, tokens=jnp.asarray(tokens[-1:], jnp.int32)))

    def generate(self, state, count, schedule):
        """Greedy tokens, how many drafts every step accepted, and the last state."""
        tokens, accepted = [], []
        asked = request(count, frozenset(), schedule, [Sampling()])
        while len(tokens) < count:
            state, asked, steps = self.programs.run(state, asked, True, row_counts(schedule))
            for i in range(int(steps.count)):
                tokens += np.asarray(steps.tokens)[i, 0, : int(steps.emitted[i, 0])].tolist()
                accepted.append(int(steps.accepted[i, 0]))
        return tokens, accepted, state

    def context(self, state):
        """Keys and values of the drafter's window, float32, of all ranks."""
        plan = self.backend.draft_plan
        window = plan.layout.config.sliding_window
        length = int(state.lengths[0])
        live = np.arange(max(0, length - (window or length)), length) % plan.cache.slots
        found = [ring.unpack(plan.cache, c) for c in np.asarray(state.caches.draft)]
        return np.stack([np.stack(f)[:, :, live] for f in found])
