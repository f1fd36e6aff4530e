"""Runs the kernel on CPU devices, step by step, as a caller would on TPUs."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from kimi.kernels import megakernel
from kimi.kernels.collectives import AXIS
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh, default_mesh
from kimi.kernels.plan import Plan, default_settings
from kimi.kernels.records import OPEN_POSITIONS
from kimi.kernels.refs import state_shapes
from tests.packing.target import pack

WEIGHTS = ("dense", "vectors", "experts", "embedding")


class Session:
    """A model on some ranks, with its state.

    Args:
      config, tensors: of the checkpoint.
      ranks: CPU devices.
      rows, sequences, context, rollback: of the plan.
      interpret: as in `megakernel.build`.
      settings: of the plan, other than the best.
    """

    def __init__(
        self, config, tensors, ranks=1, rows=1, sequences=1, context=512, interpret=True,
        mesh: Mesh | None = None, expert_format=ExpertFormat.MXFP4, taps=(), rollback=False,
        **settings,
    ):  # fmt: skip
        layout = Layout(config, mesh or default_mesh(config, ranks), expert_format)
        best = default_settings(layout, rows, context, sequences, taps, rollback)
        self.plan = Plan(layout, replace(best, **settings))
        kernel = megakernel.build(self.plan, interpret)
        packed = [pack(layout, tensors, rank) for rank in range(ranks)]
        arrays = [np.stack([getattr(p, name) for p in packed]) for name in WEIGHTS]
        if ranks == 1:
            self._place = lambda a: jnp.asarray(a[0])
            self._weights = [self._place(a) for a in arrays]
            self._step = jax.jit(kernel, donate_argnums=(5, 6))
            self.reset()
            return
        devices = DeviceMesh(np.array(jax.devices()[:ranks]), (AXIS,))
        shared, split = PartitionSpec(), PartitionSpec(AXIS)

        def one_rank(step, *own):
            return tuple(x[None] for x in kernel(step, *(a[0] for a in own)))

        mapped = jax.shard_map(
            one_rank, mesh=devices, in_specs=(shared, *[split] * 6), out_specs=split,
            check_vma=False,
        )  # fmt: skip
        sharding = NamedSharding(devices, split)
        self._place = lambda a: jax.device_put(a, sharding)
        self._weights = [self._place(a) for a in arrays]
        self._step = jax.jit(mapped, donate_argnums=(5, 6))
        self.reset()

    def reset(self, dead: float = 0.0) -> None:
        """Back to before the first token; what must not matter holds `dead`, in every word."""
        self.lengths = np.zeros(self.plan.rows.sequences, np.int32)
        self.kept, ranks = 0, self.plan.layout.mesh.ranks
        kda, cache = (np.zeros((ranks, *s), d) for s, d in state_shapes(self.plan).values())
        bits = int(np.asarray(dead, jnp.bfloat16).view(np.uint16))
        cache[...] = bits << 16 | bits
        if self.plan.rows.rolls_back:  # what the rows of the step before did: none is kept
            kda[:, :, self.plan.record.fresh :] = dead
        self.state = [self._place(a) for a in (kda, cache)]

    def remember(self, lengths: Sequence[int], seed: int = 0) -> None:
        """As if so many tokens had been seen: random latents, NaN behind them; KDA states of zero.

        The same for every plan of as many sequences.
        """
        self.reset(float("nan"))
        cache, rng = np.array(self.state[1]), np.random.default_rng(seed)
        words = cache.shape[-2]
        for sequence, length in enumerate(lengths):
            shape = (*cache.shape[-5:-4], length, 2 * words)
            latents = (4 * rng.standard_normal(shape)).astype(jnp.bfloat16).view(np.uint32)
            for position in range(length):
                block, lane = divmod(position, OPEN_POSITIONS)
                cache[..., sequence, block, :, lane] = latents[:, position]
        self.lengths = np.asarray(lengths, np.int32)
        self.state[1] = self._place(cache if self.plan.layout.mesh.ranks > 1 else cache[None])

    def run(self, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """From the start, one token a step: greedy tokens [T], logits [T, V], taps [T, taps, D]."""
        self.reset()
        found = []
        for token in tokens:
            ids, _, logits = self.step([token])
            found.append((ids, logits, self.taps[:, :1].swapaxes(0, 1)))
        return tuple(np.concatenate(x) for x in zip(*found, strict=True))

    def step(self, tokens: Sequence[int], live: int | None = None):
        """One step: greedy tokens, their logits, and all logits, of the live rows.

        Rows that can be given up all count until `keep` says otherwise.
        """
        live = len(tokens) if live is None else live
        rows = self.plan.rows
        if rows.rolls_back:
            self.lengths = self.lengths + self.kept
        numbers = megakernel.step_input(tokens, self.lengths, self.kept, live)
        *self.state, ids, best, logits, taps = self._step(
            jnp.asarray(numbers), *self._weights, *self.state
        )
        self.kept = live
        if not rows.rolls_back:
            self.lengths = self.lengths + 1
        ranks = self.plan.layout.mesh.ranks
        ids, best, logits, taps = (
            np.asarray(x) if ranks > 1 else np.asarray(x)[None] for x in (ids, best, logits, taps)
        )
        for x in (ids, best, taps):  # all ranks know them, bit by bit
            np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape))
        self.taps = taps[0]
        share = self.plan.layout.mesh.local(self.plan.layout.config.vocab_size)
        whole = np.concatenate(list(logits[:, :live, :share]), -1)
        np.testing.assert_array_equal(ids[0, :live, 0], whole.argmax(-1))
        return ids[0, :live, 0], best[0, :live, 0], whole

    def follow(self, other: "Session") -> None:
        """Takes over the sequence of another session, whose records have the same form."""
        self.state, self.lengths, self.kept = other.state, other.lengths, other.kept

    def keep(self, rows: int) -> None:
        """How many rows of the block just run count; all of them unless this says otherwise."""
        self.kept = rows
