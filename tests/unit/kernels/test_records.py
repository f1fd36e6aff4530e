"""What sequences leave behind, by hand for the published model on 32 ranks."""

import pytest

from kimi.kernels.errors import PlanError
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.kernels.records import KdaRecord, LatentCache, Rows
from tests.unit.kernels.build import published

LAYOUT = Layout(published(), Mesh(32, 2))


@pytest.mark.parametrize(
    "rows, total",
    [
        (Rows(1), 3 * 128 + 9 * 8),  # three heads; 9 panels of q, k, v as register tiles
        (Rows(8), 3 * 128 + 2 * 9 * 8 + 3 * 3 * 8),  # the block's rows, and three traces
        (Rows(3, 3), 3 * 3 * 128 + 3 * 9 * 8),  # three recurrent_states; a tile per earlier tap
    ],
)
def test_record_rows(rows, total):
    assert KdaRecord.of(LAYOUT, rows).total == total


def test_parts_of_a_record_follow_each_other():
    record = KdaRecord.of(LAYOUT, Rows(8))
    assert (record.recurrent_rows, record.conv_row(0), record.fresh) == (384, 384, 456)
    assert [record.trace(i) for i in range(4)] == [528, 552, 576, 600]


@pytest.mark.parametrize("rows, appended", [(Rows(1), 1), (Rows(2), 2), (Rows(2, 2), 1)])
def test_cache_blocks(rows, appended):
    """1000 positions are two tiles of four blocks; one more block lies behind."""
    cache = LatentCache.of(LAYOUT, 1000, 512, rows)
    assert (cache.words, cache.tile_blocks, cache.blocks) == (288, 4, 9)
    assert cache.open_blocks == appended


@pytest.mark.parametrize(
    "count, sequences, problem", [(0, 1, "rows: .* found 0"), (9, 1, "rows: .* found 9"),
                                  (4, 2, "sequences: expected 1 .* or 4 .*, found 2")],
)  # fmt: skip
def test_rows_that_cannot_be_are_named(count, sequences, problem):
    with pytest.raises(PlanError, match=problem):
        Rows(count, sequences)
