"""Products of many rows with the dense weights of a layer, straight from its tiles.

A panel's words hold inputs 2r and 2r + 1 of an output (`kernels.matrix`). Taken apart by halves
they are the matrix with its even inputs first, so left operands come in that order: see `left`.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from kimi.kernels.chip import LANES, round_up
from kimi.kernels.matrix import BF16_TILE_ROWS
from kimi.kernels.stream import Block, Stream
from kimi.prefill.pairs import BF16, F32, even_first, high, low, padded


def left(x: Array) -> Array:
    """A left operand [T, K] -> bfloat16 [T, K up to 16], even inputs first, zeros behind."""
    columns = round_up(x.shape[1], BF16_TILE_ROWS)
    return even_first(padded(x.astype(BF16), columns))


@dataclass(frozen=True)
class Tiles:
    """Dense weights of a part of the model on one rank.

    Attributes:
      stream: how they lie.
      words: uint32 [stream.tiles, tile rows, 128].
    """

    stream: Stream
    words: Array

    @classmethod
    def of(cls, dense: Array, stream: Stream, first: Array | int) -> "Tiles":
        """The tiles of a stream that begins at tile `first` of all dense weights."""
        return cls(stream, lax.dynamic_slice_in_dim(dense, first, stream.tiles))

    def product(self, name: str, x: Array) -> Array:
        """x @ a matrix.

        Args:
          name: of the matrix.
          x: bfloat16 [T, K] from `left`.

        Returns: float32 [T, outputs].
        Numerics: bfloat16 operands, float32 sums.
        """
        matrix = self.stream.matrix(name)
        blocks = self.stream.blocks_of(name)
        parts = []
        if matrix.panels:
            weight = self._panels([b for b in blocks if b.panels is not None])
            parts.append(jnp.dot(x, weight, preferred_element_type=F32))
        if matrix.tail_outputs:
            weight = self._tail([b for b in blocks if b.panels is None], matrix.tail_outputs)
            contract = (((1,), (1,)), ((), ()))
            weight = weight[:, : x.shape[1]]
            tail = lax.dot_general(x, even_first(weight), contract, preferred_element_type=F32)
            parts.append(tail)
        whole = parts[0] if len(parts) == 1 else jnp.concatenate(parts, 1)
        return whole[:, : matrix.outputs]

    def _block(self, block: Block) -> Array:
        return self.words[block.tile, block.row : block.row + block.rows]

    def _panels(self, blocks: list[Block]) -> Array:
        """bfloat16 [K, panels * 128], even inputs first."""
        groups: dict[tuple[int, int], list[Array]] = {}
        for block in blocks:
            assert block.panels is not None
            count = block.panels[1] - block.panels[0]
            part = self._block(block).reshape(count, block.rows // count, LANES)
            groups.setdefault(block.panels, []).append(part)
        panels = jnp.concatenate([_joined(parts, 1) for parts in groups.values()], 0)
        words = panels.swapaxes(0, 1).reshape(panels.shape[1], -1)
        return jnp.concatenate([low(words), high(words)], 0)

    def _tail(self, blocks: list[Block], outputs: int) -> Array:
        """bfloat16 [outputs, K up to 128], inputs in their order."""
        chunks = _joined([self._block(b).reshape(-1, outputs // 2, LANES) for b in blocks], 0)
        words = chunks.swapaxes(0, 1).reshape(outputs // 2, -1)
        return jnp.stack([low(words), high(words)], 1).reshape(outputs, -1)


def _joined(parts: list[Array], axis: int) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)
