"""Runs chunks of a prompt on CPU devices, into the state of a kernel's `Session`."""

from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import PartitionSpec

from kimi.decoding.programs import split
from kimi.kernels.collectives import AXIS
from kimi.kernels.layout import Weights
from kimi.prefill.chunks import chunk_sizes
from kimi.prefill.layer import Span
from kimi.prefill.program import Chunk
from tests.interpret.session import Session


class Prefill:
    """Feeds prompts to a session whose rows are a block of one sequence."""

    def __init__(self, session: Session):
        self.session = session
        self.sizes = chunk_sizes(session.plan)
        self._programs = cache(self._compile)

    def _compile(self, size: int):
        chunk = Chunk(self.session.plan, True)
        ranks = self.session.plan.layout.mesh.ranks

        def run(kept, tokens, start, count, *own):
            *weights, kda, cache = own
            found = chunk.run(Weights(*weights), kda, cache[:, 0], kept, tokens, Span(start, count))
            return found[0], found[1][:, None], found[2]

        if ranks == 1:
            return jax.jit(run)

        def one_rank(*arrays):
            own = (a[0] for a in arrays[4:])
            return tuple(x[None] for x in run(*arrays[:4], *own))

        devices = DeviceMesh(np.array(jax.devices()[:ranks]), (AXIS,))
        whole, split = PartitionSpec(), PartitionSpec(AXIS)
        return jax.jit(jax.shard_map(
            one_rank, mesh=devices, in_specs=(*[whole] * 4, *[split] * 6), out_specs=split,
            check_vma=False,
        ))  # fmt: skip

    def feed(self, tokens: Sequence[int], fill: int = 0, sizes: Sequence[int] | None = None):
        """Consumes tokens behind what the session has kept; returns the taps [taps, T, D].

        Args:
          fill: the token behind the last one of a chunk.
          sizes: of the chunks; by default those of `chunks.split`.
        """
        session, done, found = self.session, 0, []
        if session.plan.rows.block > 1:
            session.lengths = session.lengths + session.kept
        for size in sizes or split(len(tokens), self.sizes):
            part = tokens[done : done + size]
            padded = np.full(size, fill, np.int32)
            padded[: len(part)] = part
            *session.state, taps = self._programs(size)(
                jnp.int32(session.kept), jnp.asarray(padded), jnp.int32(session.lengths[0]),
                jnp.int32(len(part)), *session._weights, *session.state,
            )  # fmt: skip
            session.lengths, session.kept = session.lengths + len(part), 0
            taps = np.asarray(taps)
            if taps.ndim == 4:
                taps = np.concatenate(list(taps), 1)
            found.append(taps[:, : len(part)])
            done += len(part)
        return np.concatenate(found, 1)
