"""Opening a model for the kernels: checkpoint, drafter and tokenizer together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kimi.checkpoint import Checkpoint
from kimi.config import ModelConfig
from kimi.kernels.experts import ExpertFormat
from kimi.models import capacity_for, open_drafter, open_tokenizer
from kimi.program_cache import keep_programs
from kimi.runtime.decoder import KernelDecoder
from kimi.runtime.model import DeviceModel, Report, place_model
from kimi.runtime.scoring import Scorer
from kimi.text import Tokenizer


@dataclass
class KernelModel:
    """A model on devices, with its tokenizer.

    Attributes:
      checkpoint: of the target.
      placed: weights on the devices.
    """

    checkpoint: Checkpoint
    placed: DeviceModel
    _decoders: dict[int, KernelDecoder] = field(default_factory=dict)
    _scorers: dict[int, Scorer] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"KernelModel({str(self.path)!r}, {self.placed})"

    @property
    def path(self) -> Path:
        """Folder of the checkpoint."""
        return self.checkpoint.path

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back. Raises KimiError if there is none that fits."""
        return open_tokenizer(self.checkpoint)

    @property
    def config(self) -> ModelConfig:
        """Of the target."""
        return self.placed.config

    @property
    def block_size(self) -> int:
        """Rows of a drafted block, the newest token's included; 1 without a drafter."""
        layout = self.placed.draft_layout
        return 1 if layout is None else layout.config.block_size

    def decoder(self, tokens: int) -> KernelDecoder:
        """A decoder with room for `tokens` tokens, prompt included; the same one for one size.

        Raises:
          InputError: more than the model's context.
        """
        capacity = capacity_for(self.config, tokens)
        if capacity not in self._decoders:
            self._decoders[capacity] = KernelDecoder(self.placed, capacity)
        return self._decoders[capacity]

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits behind each id, float32 [T, vocab]. A program for every step of capacity.

        Raises:
          InputError: more ids than the model's context.
        """
        capacity = capacity_for(self.config, len(ids))
        if capacity not in self._scorers:
            self._scorers[capacity] = Scorer(self.placed, capacity)
        return self._scorers[capacity](ids)


def open_kernel_model(
    model: str | Path,
    *,
    drafter: str | Path | None = None,
    draft: bool = True,
    ranks: int | None = None,
    experts: ExpertFormat = ExpertFormat.MXFP4,
    store: Path | None = None,
    report: Report | None = None,
) -> KernelModel:
    """Loads target and drafter onto devices; see `kimi.load` and `place_model`.

    Raises:
      KimiError: one clear line about what is wrong with which file or option.
    """
    keep_programs()
    checkpoint = Checkpoint.open(model)
    checkpoint.check()
    tensors = open_drafter(checkpoint, drafter) if draft else None
    placed = place_model(
        checkpoint, tensors, ranks=ranks, experts=experts, store=store, report=report
    )
    return KernelModel(checkpoint, placed)
