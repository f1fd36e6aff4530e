"""Between tokens and columns. T tokens, R ranks; rank r has tokens r T / R to (r + 1) T / R - 1.

With one rank nothing is moved, and nothing rounded. With more, partial sums cross as bfloat16 where
they do so in the decode kernel (`kernels.phases.transfers`), and are summed in float32 in the order
of ranks.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from kimi.kernels.collectives import AXIS


@dataclass(frozen=True)
class Collectives:
    """The collectives of a mesh of `ranks` ranks; to be used inside `shard_map` over `AXIS`."""

    ranks: int

    def gather_tokens(self, own: Array) -> Array:
        """[T / R, N] of every rank -> [T, N] on all."""
        return own if self.ranks == 1 else lax.all_gather(own, AXIS, tiled=True)

    def gather_columns(self, own: Array) -> Array:
        """[T, n] of every rank -> [T, R n] on all."""
        return own if self.ranks == 1 else lax.all_gather(own, AXIS, axis=1, tiled=True)

    def own_tokens(self, columns: Array) -> Array:
        """All tokens of own columns [T, n] -> all columns of own tokens [T / R, R n]."""
        if self.ranks == 1:
            return columns
        return lax.all_to_all(columns, AXIS, split_axis=0, concat_axis=1, tiled=True)

    def own_rounded(self, columns: Array) -> Array:
        """As `own_tokens` for float32, which crosses as bfloat16."""
        if self.ranks == 1:
            return columns
        return self.own_tokens(columns.astype(jnp.bfloat16)).astype(jnp.float32)

    def sum_tokens(self, partial: Array, rounded: bool = True) -> Array:
        """Partial sums float32 [T, N] of every rank -> whole sums of own tokens [T / R, N].

        Args:
          rounded: they cross as bfloat16.
        """
        if self.ranks == 1:
            return partial
        parts = partial.astype(jnp.bfloat16) if rounded else partial
        parts = parts.reshape(self.ranks, -1, partial.shape[1])
        return jnp.sum(lax.all_to_all(parts, AXIS, 0, 0).astype(jnp.float32), 0)

    def rank(self) -> Array:
        """This rank's number, [] int32."""
        return jnp.int32(0) if self.ranks == 1 else lax.axis_index(AXIS)
