"""Runs the draft kernel on CPU devices as a caller would on TPUs, beside the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from kimi.kernels.chip import SUBLANES
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft import kernel
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.draft.plan import DraftPlan, default_settings
from kimi.kernels.mesh import Mesh
from tests.packing import ring

WEIGHTS = ("dense", "vectors", "embedding", "markov_in", "markov_out")


class DraftSession:
    """A drafter on some ranks, with its context.

    Args:
      config, target, tensors: of the drafter.
      ranks: CPU devices.
      context: of the plan.
      interpret: as in `kernel.build`.
    """

    def __init__(self, config, target, tensors, ranks=1, context=0, interpret=True, shared=None):
        if len(jax.devices()) < ranks:
            pytest.skip(f"needs XLA_FLAGS=--xla_force_host_platform_device_count={ranks}")
        layout = DraftLayout(config, target, Mesh(ranks))
        self.plan = DraftPlan(layout, default_settings(layout, context))
        draft = kernel.build(self.plan, interpret)
        packed = [layout.pack(tensors, rank, shared) for rank in range(ranks)]
        arrays = [np.stack([getattr(p, name) for p in packed]) for name in WEIGHTS]
        if ranks == 1:
            self._place = lambda a: jnp.asarray(a[0])
            self._step = jax.jit(draft, donate_argnums=(7,))
        else:
            devices = DeviceMesh(np.array(jax.devices()[:ranks]), (AXIS,))
            whole, split = PartitionSpec(), PartitionSpec(AXIS)

            def one_rank(step, taps, *own):
                return tuple(x[None] for x in draft(step, taps, *(a[0] for a in own)))

            mapped = jax.shard_map(
                one_rank, mesh=devices, in_specs=(whole, whole, *[split] * 6), out_specs=split,
                check_vma=False,
            )  # fmt: skip
            sharding = NamedSharding(devices, split)
            self._place = lambda a: jax.device_put(a, sharding)
            self._step = jax.jit(mapped, donate_argnums=(7,))
        self._weights = [self._place(a) for a in arrays]
        self.restart()

    def restart(self, fill: float = 0.0) -> None:
        """Back to before the first token; dead slots hold `fill`, as both halves of a word."""
        bits = int(np.asarray(fill, jnp.bfloat16).view(np.uint16))
        shape = (self.plan.layout.mesh.ranks, *self.plan.cache.shape)
        self.context = self._place(np.full(shape, bits << 16 | bits, np.uint32))
        self.length = 0

    def fill(self, state) -> None:
        """Takes over the context of a reference's `DraftCache`."""
        layout, ranks = self.plan.layout, range(self.plan.layout.mesh.ranks)
        positions = np.asarray(state.positions)
        own = [slice(*layout.key_heads(rank)) for rank in ranks]
        contexts = [
            ring.pack(self.plan.cache, state.keys[:, :, h], state.values[:, :, h], positions)
            for h in own
        ]
        self.context = self._place(np.stack(contexts))
        self.length = int(state.length)

    def step(self, anchor: int, taps: np.ndarray, fill: float = 0.0):
        """One step: tokens and confidence of the block.

        Args:
          taps: [kept, taps * D] of the tokens committed since the last step, 8 at most.
          fill: what the rows behind them hold.
        """
        config, kept = self.plan.layout.config, len(taps)
        count = len(config.aux_hidden_state_layer_ids)
        rows = np.full((count, SUBLANES, config.hidden_size), fill, np.float32)
        rows[:, :kept] = np.asarray(taps).reshape(kept, count, config.hidden_size).swapaxes(0, 1)
        numbers = kernel.step_input(anchor, self.length, kept)
        self.context, tokens, confidence = self._step(
            jnp.asarray(numbers), jnp.asarray(rows), *self._weights, self.context
        )
        self.length += kept
        found = []
        for x in (np.asarray(tokens), np.asarray(confidence)):
            if self.plan.layout.mesh.ranks > 1:
                np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape))
                x = x[0]
            np.testing.assert_array_equal(x, np.broadcast_to(x[:, :1], x.shape))
            assert not x[config.block_size :].any()
            found.append(x[: config.block_size, 0])
        return found
