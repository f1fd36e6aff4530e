"""Links of a slice, and how many messages share the fullest of each kind.

All cores exchange at once and alike: in one message of an exchange core `c` sends to `c ^ offset`.
A message goes along x, then y, then z; two cores of a chip, and what passes through it, share its
links. On a side of two chips a message takes one link; on a longer one it passes the chips between,
the shorter way round if the side is a ring.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType

from kimi.errors import InputError

CORES_PER_CHIP = 2
SIBLING = "sibling"  # the way between the two cores of a chip
# A link: axis and, on a side that is longer than two, which of its links; or `SIBLING`.
Link = str
Loads = Mapping[Link, int]


@dataclass(frozen=True)
class Slice:
    """A slice of chips.

    Attributes:
      sides: chips along x, y and z.
      wrap: sides of more than two chips are rings.
    """

    sides: tuple[int, ...]
    wrap: bool = False

    @cached_property
    def cores(self) -> int:
        """TensorCores."""
        return prod(self.sides) * CORES_PER_CHIP

    def loads(self, offset: int) -> Loads:
        """Messages over the fullest link at each place, when all cores send to `core ^ offset`."""
        return _loads(self, offset)


def slice_of(topology: str, wrap: bool = False) -> Slice:
    """The slice that a topology name such as `tpu7x:2x2x4` means.

    Raises:
      InputError: the name is not of that form.
    """
    kind, _, shape = topology.partition(":")
    sides = shape.split("x")
    if kind != "tpu7x" or not all(side.isdigit() and int(side) > 0 for side in sides):
        raise InputError(f"topology: expected tpu7x:AxBxC with chip counts, found {topology!r}")
    return Slice(tuple(int(side) for side in sides), wrap)


@lru_cache(maxsize=4096)
def _loads(where: Slice, offset: int) -> Loads:
    if offset == 1:
        return MappingProxyType({SIBLING: 1})
    crossing: Counter[tuple[Link, tuple[int, ...], int]] = Counter()
    for core in range(where.cores):
        crossing.update(_route(where, core, core ^ offset))
    fullest: dict[Link, int] = {}
    for (link, _, _), count in crossing.items():
        fullest[link] = max(fullest.get(link, 0), count)
    return MappingProxyType(fullest)


def _chip(where: Slice, core: int) -> list[int]:
    chip, place = core // CORES_PER_CHIP, []
    for side in where.sides:
        place.append(chip % side)
        chip //= side
    return place


def _route(where: Slice, core: int, peer: int) -> list[tuple[Link, tuple[int, ...], int]]:
    """Directed links that a message takes: axis and place, other coordinates, direction."""
    if peer >= where.cores:
        return []
    at, to, found = _chip(where, core), _chip(where, peer), []
    for axis, side in enumerate(where.sides):
        ahead, ring = (to[axis] - at[axis]) % side, where.wrap and side > 2
        # Half way round a ring even chips go up and odd ones down.
        up = ahead * 2 < side or (ahead * 2 == side and at[axis] % 2 == 0) if ring else (
            to[axis] > at[axis]
        )  # fmt: skip
        while at[axis] != to[axis]:
            after = (at[axis] + (1 if up else -1)) % side
            low = at[axis] if up else after
            others = tuple(x for n, x in enumerate(at) if n != axis)
            found.append((f"{'xyz'[axis]}{low}", others, int(up)))
            at[axis] = after
    return found
