"""What the plans of all kernels have: buffers, transfers and a schedule. Contains no Pallas."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from kimi.kernels.buffers import BufferSpec, Storage, check_budget, storages
from kimi.kernels.chip import TPU_V7, ChipSpec
from kimi.kernels.schedule import Step, Transfer, check


@dataclass(frozen=True)
class KernelPlan(ABC):
    """What the plans of all kernels have.

    Attributes:
      layout: of the weights.
      settings: sizes that are free to choose.
      chip: what it must fit.
    """

    PHASES: ClassVar[tuple[str, ...]]

    layout: Any
    settings: Any
    chip: ChipSpec = TPU_V7

    @property
    @abstractmethod
    def row_tile(self) -> int:
        """Sublanes of the rows in messages: 1 or 8."""

    @property
    @abstractmethod
    def transfers(self) -> tuple[Transfer, ...]:
        """All copies; one semaphore each, two if remote, an array of them if it has slots."""

    @property
    @abstractmethod
    def buffers(self) -> tuple[BufferSpec, ...]:
        """All buffers."""

    @property
    @abstractmethod
    def program(self) -> tuple[Step, ...]:
        """The schedule of all layers, written out."""

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        """The scratch arrays; buffers that share one take turns."""
        return storages(self.buffers, self.PHASES)

    def check_memory_and_schedule(self) -> None:
        """Raises PlanError if VMEM does not suffice, or the schedule is not sound."""
        check_budget(self.storages, self.chip)
        check(self.program, self.transfers, self.buffers, self.PHASES)
