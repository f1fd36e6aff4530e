"""Opening a model for use: checkpoint, drafter and tokenizer together."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.config import ModelConfig
from kimi.decoding.engine import Decoder
from kimi.decoding.programs import Programs
from kimi.errors import InputError
from kimi.reference.draft import Dspark
from kimi.reference.loading import load_drafter, load_model
from kimi.reference.model import K3
from kimi.reference.numerics import BFLOAT16, FLOAT32, Precision
from kimi.text import Tokenizer
from kimi.tiny import ASSETS

PRECISIONS = {"float32": FLOAT32, "bfloat16": BFLOAT16}
DRAFT_FOLDER = "dspark"  # where a drafter lies inside its target's folder
_CAPACITY_STEP = 256  # context sizes are rounded up to this, so that few shapes are compiled


@dataclass
class LoadedModel:
    """A loaded model.

    Attributes:
      path: folder of the checkpoint.
      config: of the target.
      target: the reference model.
      drafter: its DSpark drafter, or None.
      tokenizer: text to ids and back.
    """

    path: Path
    config: ModelConfig
    target: K3
    drafter: Dspark | None
    tokenizer: Tokenizer

    @cached_property
    def programs(self) -> Programs:
        """The compiled functions, shared by all decoders."""
        return Programs(self.target, self.config, self.drafter)

    def decoder(self, tokens: int) -> Decoder:
        """A decoder with room for `tokens` tokens, prompt included.

        Raises:
          InputError: more than the model's context.
        """
        limit = self.config.max_position_embeddings
        if tokens > limit:
            raise InputError(
                f"prompt and new tokens: expected at most {limit} together (the model's context, "
                f"max_position_embeddings), found {tokens}"
            )
        capacity = min(limit, -(-tokens // _CAPACITY_STEP) * _CAPACITY_STEP)
        return Decoder(self.programs, capacity)


def precision_of(dtype: str) -> Precision:
    """The rounding rule called `dtype`. Raises InputError for an unknown name."""
    if dtype not in PRECISIONS:
        raise InputError(f"dtype: expected one of {', '.join(PRECISIONS)}, found {dtype!r}")
    return PRECISIONS[dtype]


def open_target(model: str | Path = ASSETS, dtype: str = "float32") -> tuple[Checkpoint, K3]:
    """Checks and loads the target alone. Raises KimiError with one clear line."""
    checkpoint = Checkpoint.open(model)
    checkpoint.check()
    return checkpoint, load_model(checkpoint, checkpoint.config, precision_of(dtype))


def open_model(
    model: str | Path = ASSETS,
    *,
    drafter: str | Path | None = None,
    draft: bool = True,
    dtype: str = "float32",
) -> LoadedModel:
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
    precision = precision_of(dtype)
    checkpoint, target = open_target(model, dtype)
    tokenizer = Tokenizer.from_dir(checkpoint.path)
    if tokenizer.vocab_size > checkpoint.config.vocab_size:
        raise InputError(
            f"{checkpoint.path}: tokenizer: expected at most {checkpoint.config.vocab_size} ids "
            f"(vocab_size in config.json), found {tokenizer.vocab_size}"
        )
    if drafter is None and (checkpoint.path / DRAFT_FOLDER / "config.json").exists():
        drafter = checkpoint.path / DRAFT_FOLDER
    loaded = None
    if draft and drafter is not None:
        tensors = DraftCheckpoint.open(drafter)
        tensors.check()
        tensors.config.check_target(checkpoint.config)
        loaded = load_drafter(tensors, tensors.config, precision, target=checkpoint)
    return LoadedModel(checkpoint.path, checkpoint.config, target, loaded, tokenizer)
