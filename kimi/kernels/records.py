"""What a sequence leaves behind in a layer: the record of a KDA layer, the cache of an MLA layer.

Both are 32-bit words in rows of 128. A step has `rows` rows of the model, in one of four forms:

    one row                  the record is the state after it
    a block of one sequence  the record is the state before it, and what its rows did: the next step
                             replays the accepted ones, which is exact and moves little
    one row with rollback    a row with the record of a block, so that either may follow the other
    one row each of several  as one row, the sequences side by side
"""

from dataclasses import dataclass

from kimi.kernels.chip import LANES, SUBLANES, round_up
from kimi.kernels.errors import PlanError
from kimi.kernels.layout import Layout

OPEN_POSITIONS = LANES  # of the block of cache positions that new tokens are written into
OPEN_SHIFT = OPEN_POSITIONS.bit_length() - 1


@dataclass(frozen=True)
class Rows:
    """The rows of the model in one step.

    Attributes:
      count: rows, 1 to 8.
      sequences: 1 if they are consecutive tokens of one sequence, or `count` if each is the newest
        token of a sequence of its own.
      rollback: a single row has the record of a block.

    Raises:
      PlanError: other values.
    """

    count: int
    sequences: int = 1
    rollback: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.count <= SUBLANES:
            raise PlanError(f"plan: rows: expected 1 to {SUBLANES}, found {self.count}")
        if self.sequences not in (1, self.count):
            raise PlanError(
                f"plan: sequences: expected 1 (a block of one sequence) or {self.count} (one row "
                f"each), found {self.sequences}"
            )
        if self.rollback and self.sequences > 1:
            raise PlanError(f"plan: rollback: expected one sequence, found {self.sequences}")

    @property
    def block(self) -> int:
        """Rows of each sequence."""
        return self.count // self.sequences

    @property
    def rolls_back(self) -> bool:
        """Whether the next step says how many of the rows count; otherwise they do at once."""
        return self.rollback or self.block > 1

    @property
    def tile(self) -> int:
        """Sublanes that rows take in messages and operands: one, or a whole register."""
        return 1 if self.count == 1 else SUBLANES


@dataclass(frozen=True)
class KdaRecord:
    """f32 [rows, 128] of one KDA layer on one rank: one copy in, one out.

        recurrent_state  sequence, head, value channel: a row of key channels, zeros behind
        conv_state       newest pre-convolution rows of q, k, v. One sequence: register tiles, one
                         per 128 channels, whose last rows are the newest tokens. Several: such
                         tiles for every tap but the last, oldest first; a sequence is a sublane
        fresh            if it rolls back: the rows of the step, tiles like conv_state
        trace            if it rolls back: tiles of `ops.kda.Trace`, update, key, decay

    Attributes:
      heads, width: of this rank; channels of a head.
      kernel_size: of the convolution.
      rows: of the step.
    """

    heads: int
    width: int
    kernel_size: int
    rows: Rows

    @classmethod
    def of(cls, layout: Layout, rows: Rows) -> "KdaRecord":
        """The record of a model on a mesh.

        Raises:
          PlanError: heads wider than a register row, or more taps than a register has sublanes.
        """
        kda = layout.config.kda
        if kda.head_dim > LANES or kda.short_conv_kernel_size > SUBLANES:
            raise PlanError(
                f"plan: KDA: expected heads of at most {LANES} channels and at most {SUBLANES} "
                f"taps, found {kda.head_dim} and {kda.short_conv_kernel_size}"
            )
        heads = layout.mesh.local(kda.num_heads)
        return cls(heads, kda.head_dim, kda.short_conv_kernel_size, rows)

    @property
    def channels(self) -> int:
        """Of q, k or v."""
        return self.heads * self.width

    @property
    def recurrent_rows(self) -> int:
        """Of all sequences."""
        return self.rows.sequences * self.channels

    @property
    def conv_state(self) -> int:
        """First row of the conv state."""
        return round_up(self.recurrent_rows, SUBLANES)

    @property
    def _conv_rows(self) -> int:
        """Rows of one tile of q, k and v."""
        return SUBLANES * -(-3 * self.channels // LANES)

    def conv_row(self, index: int) -> int:
        """First row of one tap's tiles; index 0 if there is only one sequence."""
        return self.conv_state + index * self._conv_rows

    @property
    def fresh(self) -> int:
        """First row of the block's rows."""
        return self.conv_row(self.kernel_size - 1 if self.rows.sequences > 1 else 1)

    def trace(self, index: int) -> int:
        """First row of an entry of the trace, 0 to 2; index 3 is the row behind."""
        return self.fresh + self._conv_rows + index * SUBLANES * -(-self.channels // LANES)

    @property
    def total(self) -> int:
        """Rows of the record."""
        return self.trace(3) if self.rows.rolls_back else self.fresh


@dataclass(frozen=True)
class LatentCache:
    """u32 [sequences, blocks, words, 128] of one MLA layer: a latent per lane, as bfloat16 pairs.

    Attributes:
      words: of one latent, padded to whole registers.
      context: positions that a sequence may have.
      tile_positions: positions that are copied and attended at a time.
      rows: of the step.
    """

    words: int
    context: int
    tile_positions: int
    rows: Rows

    @classmethod
    def of(cls, layout: Layout, context: int, tile_positions: int, rows: Rows) -> "LatentCache":
        """The cache of a model."""
        width = layout.config.latent_cache_width
        return cls(round_up(-(-width // 2), SUBLANES), context, tile_positions, rows)

    @property
    def tile_blocks(self) -> int:
        """Blocks of a tile."""
        return self.tile_positions // OPEN_POSITIONS

    @property
    def open_blocks(self) -> int:
        """Blocks that the rows of one sequence may be written into."""
        return 1 if self.rows.block == 1 else 2

    @property
    def blocks(self) -> int:
        """Blocks of a sequence: whole tiles, and one behind them for rows that are given up."""
        return round_up(self.context, self.tile_positions) // OPEN_POSITIONS + 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the array."""
        return self.rows.sequences, self.blocks, self.words, OPEN_POSITIONS
