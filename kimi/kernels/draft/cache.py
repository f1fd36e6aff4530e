"""The drafter's context: keys and values of committed tokens, in a ring."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from kimi.kernels.chip import LANES, round_up
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.errors import PlanError
from kimi.kernels.matrix import BF16_TILE_ROWS

BLOCK_POSITIONS = LANES
# The rows of a step straddle two blocks at most, which must differ.
MIN_BLOCKS = 2


@dataclass(frozen=True)
class DraftCache:
    """u32 [layers, blocks, words, 128] on one rank: a position per lane, as bfloat16 pairs.

    Position p lies in slot p mod `slots`: block slot / 128, lane slot mod 128. The words of a slot
    are, for every head, `width` / 2 of the key and as many of the value; word i of either holds
    channel 2i in its low and 2i + 1 in its high half. Keys are normed and rotated.

    A slot that no position within the window lies in is dead: it may hold anything, NaN included.

    Attributes:
      layers: of the drafter.
      heads: of keys and values, those that the rank holds (see `DraftLayout.key_heads`).
      width: channels of a head.
      slots: of the ring, whole blocks: at least the window, or the capacity without one.
    """

    layers: int
    heads: int
    width: int
    slots: int

    @classmethod
    def of(cls, layout: DraftLayout, capacity: int) -> "DraftCache":
        """The context of a drafter.

        Args:
          capacity: committed tokens of a sequence at most; has no meaning with a window.

        Raises:
          PlanError: no capacity where one is needed, or heads that do not fit registers.
        """
        c = layout.config
        if LANES % c.head_dim or c.head_dim % BF16_TILE_ROWS:
            raise PlanError(
                f"draft plan: head_dim: expected a divisor of {LANES} and multiple of "
                f"{BF16_TILE_ROWS}, found {c.head_dim}"
            )
        if c.sliding_window is None and capacity < 1:
            raise PlanError(
                "draft plan: context: expected at least 1, as the drafter has no window, found "
                f"{capacity}"
            )
        slots = round_up(c.sliding_window or capacity, BLOCK_POSITIONS)
        slots = max(slots, MIN_BLOCKS * BLOCK_POSITIONS)
        return cls(c.num_hidden_layers, layout.local_key_heads, c.head_dim, slots)

    @property
    def blocks(self) -> int:
        """Blocks of a layer."""
        return self.slots // BLOCK_POSITIONS

    @property
    def words(self) -> int:
        """Of one position."""
        return self.heads * self.width

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the array."""
        return self.layers, self.blocks, self.words, BLOCK_POSITIONS

    def empty(self) -> Array:
        """A context without positions."""
        return jnp.zeros(self.shape, jnp.uint32)
