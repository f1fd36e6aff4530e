"""Opening a model for use: checkpoint, drafter and tokenizer together."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
import numpy.typing as npt

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.config import ModelConfig
from kimi.decoding.decoder import Decoder, Runner
from kimi.decoding.kept import Kept, fingerprint
from kimi.decoding.reference import Parts, ReferenceModel
from kimi.errors import InputError
from kimi.program_cache import Store, keep_programs
from kimi.reference.tensors import Shapes, Weights, read_drafter, read_target
from kimi.startup import find_devices
from kimi.text import Tokenizer
from kimi.values import choice, integer

if TYPE_CHECKING:  # flax is imported when it is needed: most of a second
    from kimi.reference.loading import Template
    from kimi.reference.numerics import Precision

PRECISIONS = ("float32", "bfloat16")
DRAFT_FOLDER = "dspark"  # where a drafter lies inside its target's folder
_CAPACITY_STEP = 256  # context sizes are rounded up to this, so that few shapes are compiled


@dataclass
class Model:
    """A loaded model.

    Attributes:
      checkpoint: of the target.
      runner: what runs it, the reference or the kernels.
    """

    checkpoint: Checkpoint
    runner: Runner
    _decoders: dict[tuple[int, int | None, float], Decoder] = field(
        default_factory=dict, repr=False
    )

    def __repr__(self) -> str:
        return f"Model({str(self.path)!r}, block_size={self.block_size})"

    @property
    def path(self) -> Path:
        """Folder of the checkpoint."""
        return self.checkpoint.path

    @property
    def config(self) -> ModelConfig:
        """The target model's config."""
        return self.checkpoint.config

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back. Raises KimiError if there is none that fits."""
        return open_tokenizer(self.checkpoint)

    @property
    def block_size(self) -> int:
        """Rows of a drafted block, the newest token's included; 1 without a drafter."""
        return self.runner.block_size

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits behind each id, float32 [T, vocab].

        Raises:
          InputError: more ids than the model's context.
        """
        capacity_for(self.config, len(ids))
        return self.runner.logits(ids)

    def decoder(self, tokens: int, steps: int | None = None, forced: float = 0.0) -> Decoder:
        """A decoder with room for `tokens` tokens, prompt included; the same one for one size.

        Other arguments as of `decoding.decoder.Decoder`.

        Raises:
          InputError: see `capacity_for`.
        """
        key = capacity_for(self.config, tokens), steps, forced
        if key not in self._decoders:
            self._decoders[key] = Decoder(self.runner, *key)
        return self._decoders[key]


def precision_of(dtype: str) -> "Precision":
    """The rounding rule called `dtype`. Raises InputError for an unknown name."""
    choice("dtype", dtype, PRECISIONS)
    from kimi.reference import numerics

    return {"float32": numerics.FLOAT32, "bfloat16": numerics.BFLOAT16}[dtype]


def open_model(
    model: str | Path = TINY_K3,
    *,
    drafter: str | Path | None = None,
    draft: bool = True,
    dtype: str = "float32",
) -> Model:
    """Loads target, drafter and tokenizer.

    Args:
      model: a folder in the public checkpoint's layout, or a hub repository id; default the small
        K3 that ships with the library.
      drafter: the drafter's folder or repository id; default `dspark/` inside the model's folder,
        if there is one.
      draft: False loads no drafter.
      dtype: "float32" or "bfloat16".

    Raises:
      KimiError: one clear line about what is wrong with which file or option.
    """
    choice("dtype", dtype, PRECISIONS)
    find_devices()
    store = keep_programs()
    checkpoint = Checkpoint.open(model)
    checkpoint.check()
    tensors = open_drafter(checkpoint, drafter) if draft else None
    kept = None if store is None else _kept(store, checkpoint, tensors, dtype)
    config, wide = checkpoint.config, dtype == "float32"

    def target_template() -> "Template":
        from kimi.reference.loading import target_template

        return target_template(config, precision_of(dtype))

    target = _parts(
        "target", kept, target_template, lambda shapes: read_target(checkpoint, shapes, wide)
    )
    if tensors is None:
        return Model(checkpoint, ReferenceModel(target, config, dtype, kept=kept))
    draft_config = tensors.config

    def drafter_template() -> "Template":
        from kimi.reference.loading import drafter_template

        return drafter_template(draft_config, precision_of(dtype))

    loaded = _parts(
        "drafter", kept, drafter_template,
        lambda shapes: read_drafter(tensors, shapes, wide, checkpoint),
    )  # fmt: skip
    runner = ReferenceModel(target, config, dtype, loaded, draft_config, kept)
    return Model(checkpoint, runner)


def _kept(
    store: Store, checkpoint: Checkpoint, drafter: DraftCheckpoint | None, dtype: str
) -> Kept | None:
    """Where the model's programs are kept.

    None once this process has imported the reference: what is in memory may have been changed, as
    files cannot be without another fingerprint. And only on CPUs, where start-up is felt.
    """
    if "kimi.reference.loading" in sys.modules or jax.default_backend() != "cpu":
        return None
    configs = [t.path / "config.json" for t in (checkpoint, drafter) if t is not None]
    return Kept(store, fingerprint(dtype, *(file.read_text() for file in configs)))


def _parts(
    name: str, kept: Kept | None, template: "Callable[[], Template]",
    read: Callable[[Shapes], Weights],
) -> Parts:  # fmt: skip
    """A module as weights and what puts them together, which is not needed for kept programs."""
    template = cache(template)
    shapes = template().shapes if kept is None else kept.shapes(name, lambda: template().shapes)
    weights = read(shapes)
    return Parts(
        tuple(weights.values()),
        lambda values: template().merge(dict(zip(shapes, values, strict=True))),
    )


def capacity_for(config: ModelConfig, tokens: int) -> int:
    """The context size compiled for `tokens` tokens. Raises InputError above the model's."""
    tokens, limit = integer("tokens", tokens, 1), config.max_position_embeddings
    if tokens > limit:
        raise InputError(
            f"prompt and new tokens: expected at most {limit} together (the model's context, "
            f"max_position_embeddings), found {tokens}"
        )
    return min(limit, -(-tokens // _CAPACITY_STEP) * _CAPACITY_STEP)


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's tokenizer. Raises KimiError if it does not fit the model."""
    tokenizer = Tokenizer.from_dir(checkpoint.path)
    if tokenizer.vocab_size > checkpoint.config.vocab_size:
        raise InputError(
            f"{checkpoint.path}: tokenizer: expected at most {checkpoint.config.vocab_size} ids "
            f"(vocab_size in config.json), found {tokenizer.vocab_size}"
        )
    tokenizer.stop_ids |= frozenset(checkpoint.config.eos_token_id)
    return tokenizer


def open_drafter(target: Checkpoint, drafter: str | Path | None) -> DraftCheckpoint | None:
    """A checked drafter of the target: the one given, or the one in its folder, or None.

    Raises:
      KimiError: it is damaged, or was made for another model.
    """
    if drafter is None:
        drafter = target.path / DRAFT_FOLDER
        if not (drafter / "config.json").exists():
            return None
    tensors = DraftCheckpoint.open(drafter)
    tensors.check()
    tensors.config.check_target(target.config)
    return tensors
