"""Sizes of a step that are free to choose; the plan checks them."""

from dataclasses import dataclass

CACHE_SLOTS = 4  # deeper gains nothing
LEAST_CACHE_POSITIONS = 512


@dataclass(frozen=True)
class Settings:
    """Sizes that are free to choose.

    Attributes:
      rows: rows of the model in a step.
      context: cache slots of the MLA layers, per sequence.
      ring_tiles: tiles of the dense ring.
      expert_slots: experts in flight.
      cache_slots: cache tiles in flight, the two being attended to included.
      cache_positions: positions of a cache tile.
      sequences: 1 if the rows are a block of one sequence; or as many as rows.
      rollback: see `records.Rows`.
      taps: ids of the streams that the drafter reads, see `config.DraftConfig`: id i is the stream
        entering layer i, 0-based; the number of layers stands for the stream behind the last.
    """

    rows: int
    context: int
    ring_tiles: int
    expert_slots: int
    cache_slots: int = CACHE_SLOTS
    cache_positions: int = LEAST_CACHE_POSITIONS
    sequences: int = 1
    rollback: bool = False
    taps: tuple[int, ...] = ()
