"""Placed models with a drafter, and the token-by-token path that prompts are compared with."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh as DeviceMesh

from kimi.decoding.sampling import Sampling
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft.layout import DraftLayout, DraftWeights
from kimi.kernels.layout import Layout, Weights
from kimi.kernels.mesh import default_mesh
from kimi.runtime.blocks import BlockPrograms
from kimi.runtime.model import DeviceModel
from kimi.runtime.requests import allows_singles, drafted_request, row_costs
from kimi.runtime.state import placed, state_specs
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
        self.programs = BlockPrograms(model, capacity, steps=4)
        specs = state_specs(drafts=True)
        self._decode = model.over_ranks(self._step_by_step, specs, 2, specs)

    def _step_by_step(self, weights, state, prompt, count):
        """A kernel call per token; the drafter commits the one before."""
        calls = self.programs.calls

        def body(carry):
            done, state = carry
            state, _ = calls.draft(weights, state)
            rows = jnp.zeros(self.programs.block, jnp.int32).at[0].set(prompt[done])
            state, _ = calls.target(weights, state, rows, jnp.int32(1))
            return done + 1, state

        return lax.while_loop(lambda c: c[0] < count, body, (jnp.int32(0), state))[1]

    def decode(self, state, tokens):
        """What `BlockPrograms.feed` does."""
        padded = np.zeros(self.programs.plan.settings.context, np.int32)
        padded[: len(tokens) - 1] = tokens[:-1]
        count = jnp.int32(len(tokens) - 1)
        model = self.programs.model
        state = self._decode(model.arrays, placed(model, state), jnp.asarray(padded), count)
        # Placed as those of `feed` are: `run` is compiled once.
        return placed(model, replace(state, tokens=jnp.asarray(tokens[-1:], jnp.int32)))

    def generate(self, state, count, schedule):
        """Greedy tokens, how many drafts every step accepted, and the last state."""
        tokens, accepted = [], []
        costs = row_costs(schedule, self.programs.block)
        while len(tokens) < count:
            request = drafted_request(count - len(tokens), frozenset(), costs, Sampling())
            state, steps = self.programs.run(state, request, True, allows_singles(costs))
            for i in range(int(steps.count)):
                tokens += np.asarray(steps.tokens)[i, : int(steps.emitted[i])].tolist()
                accepted.append(int(steps.accepted[i]))
        return tokens, accepted, state

    def context(self, state):
        """Keys and values of the drafter's window, float32, of all ranks."""
        plan, window = self.programs.draft, self.programs.draft.layout.config.sliding_window
        length = int(state.lengths[0])
        live = np.arange(max(0, length - (window or length)), length) % plan.cache.slots
        found = [ring.unpack(plan.cache, c) for c in np.asarray(state.context)]
        return np.stack([np.stack(f)[:, :, live] for f in found])
