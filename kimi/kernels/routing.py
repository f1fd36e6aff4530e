"""The list of experts that a rank makes for a layer."""

from enum import IntEnum


class ListRow(IntEnum):
    """Rows of a list of experts, float32 [16, slots] with an expert in every lane.

    The first eight are the weights of rows 0 to 7, 0 where a row did not choose the expert.

    EXPERT: id; 0 behind the last expert.
    ROWS: bit r is set if row r chose it.
    EXPERTS: how many experts there are, in every lane.
    PAIRS: how many work items they make with two rows in each: the sum of ceil(rows / 2), in every
      lane.
    """

    EXPERT = 8
    ROWS = 9
    EXPERTS = 10
    PAIRS = 11

    SIZE = 16
