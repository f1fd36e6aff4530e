"""Buffers of the kernel: what they are, how long they live, what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kimi.kernels.chip import ChipSpec, padded_bytes
from kimi.kernels.errors import PlanError

_LISTED = 5  # largest buffers named when a plan is over budget


class Space(StrEnum):
    """Memory spaces of a core."""

    VMEM = "vmem"
    SMEM = "smem"


@dataclass(frozen=True)
class BufferSpec:
    """One buffer.

    Attributes:
      name: how the kernel calls it.
      shape: its own shape; its storage may be larger, see `share`.
      dtype: of the elements.
      first, last: phases between which it must keep its values.
      share: buffers with the same share lie in one storage; their lives must not overlap.
      slots: entries of the first axis that are filled and read independently.
      remote: whether peers write into it. They may do so long before this rank looks: such a buffer
        shares nothing.
      space: where it is.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    first: str
    last: str
    share: str = ""
    slots: int = 1
    remote: bool = False
    space: Space = Space.VMEM


@dataclass(frozen=True)
class Storage:
    """A scratch array of the kernel, with the buffers that take turns in it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    space: Space
    buffers: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in tiles."""
        return padded_bytes(self.shape, self.dtype)


def storages(buffers: Sequence[BufferSpec], phases: Sequence[str]) -> tuple[Storage, ...]:
    """The scratch arrays, in table order.

    Args:
      phases: all phases in order.
    Raises:
      PlanError: buffers that share a storage live at the same time, differ in dtype, space or
        number of axes, or are written by peers; two buffers of one name; an unknown phase.
    """
    groups: dict[str, list[BufferSpec]] = {}
    for buffer in buffers:
        _check_life(buffer, phases)
        groups.setdefault(buffer.share or buffer.name, []).append(buffer)
    return tuple(_storage(name, group, phases) for name, group in groups.items())


def _check_life(buffer: BufferSpec, phases: Sequence[str]) -> None:
    for phase in (buffer.first, buffer.last):
        if phase not in phases:
            raise PlanError(f"buffer {buffer.name}: expected a phase of the plan, found {phase!r}")
    if phases.index(buffer.first) > phases.index(buffer.last):
        raise PlanError(
            f"buffer {buffer.name}: expected a life that ends after it begins, found "
            f"{buffer.first} to {buffer.last}"
        )


def _storage(name: str, group: Sequence[BufferSpec], phases: Sequence[str]) -> Storage:
    head = group[0]
    for i, b in enumerate(group):
        if any(b.name == a.name for a in group[:i]):
            raise PlanError(f"buffer {b.name}: expected one entry in the table, found two")
        if len(group) > 1 and b.remote:
            raise PlanError(f"buffer {b.name}: peers write into it: it may not share {name!r}")
        if (b.dtype, b.space, len(b.shape)) != (head.dtype, head.space, len(head.shape)):
            raise PlanError(
                f"buffer {b.name}: shares {name!r} with {head.name}: expected one dtype, space and "
                f"number of axes, found {b.dtype} {list(b.shape)} and {head.dtype} "
                f"{list(head.shape)}"
            )
        for a in group[:i]:
            if phases.index(a.first) <= phases.index(b.last) and (
                phases.index(b.first) <= phases.index(a.last)
            ):
                raise PlanError(
                    f"buffer {b.name}: shares {name!r} with {a.name}: expected lives that do not "
                    f"overlap, found {b.first} to {b.last} and {a.first} to {a.last}"
                )
    shape = tuple(max(sizes) for sizes in zip(*(b.shape for b in group), strict=True))
    names = tuple(b.name for b in group)
    return Storage(name, shape, head.dtype, head.space, names)


def vmem_bytes(storages: Sequence[Storage]) -> int:
    """Bytes of all VMEM storages."""
    return sum(s.nbytes for s in storages if s.space is Space.VMEM)


def check_budget(storages: Sequence[Storage], chip: ChipSpec) -> None:
    """Raises PlanError, naming the largest, if the storages and the compiler's share do not fit."""
    capacities = {
        Space.VMEM: (chip.vmem_bytes, chip.compiler_reserve_bytes),
        Space.SMEM: (chip.smem_bytes, 0),
    }
    for space, (capacity, reserve) in capacities.items():
        held = [s for s in storages if s.space is space]
        total = sum(s.nbytes for s in held) + reserve
        if total > capacity:
            largest = sorted(held, key=lambda s: -s.nbytes)[:_LISTED]
            names = ", ".join(f"{s.name} {s.nbytes / 2**20:.2f}" for s in largest)
            raise PlanError(
                f"{space.upper()} of {chip.name}: expected at most {capacity / 2**20:.2f} MiB, "
                f"found {total / 2**20:.2f} MiB ({reserve / 2**20:.2f} reserved for the compiler); "
                f"largest buffers in MiB: {names}"
            )
