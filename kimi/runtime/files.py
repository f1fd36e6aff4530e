"""Opening a model for the kernels: checkpoint, drafter and tokenizer together."""

from pathlib import Path

from kimi.checkpoint import Checkpoint
from kimi.kernels.experts import ExpertFormat
from kimi.models import Model, open_drafter
from kimi.program_cache import keep_programs
from kimi.runtime.backend import KernelModel
from kimi.runtime.model import Report, place_model


def open_kernel_model(
    model: str | Path,
    *,
    drafter: str | Path | None = None,
    draft: bool = True,
    ranks: int | None = None,
    experts: ExpertFormat = ExpertFormat.MXFP4,
    store: Path | None = None,
    report: Report | None = None,
) -> Model:
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
    return Model(checkpoint, KernelModel(placed))
