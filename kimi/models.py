"""Opening a model for use: checkpoint, drafter and tokenizer together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.config import ModelConfig
from kimi.decoding.engine import Decoder
from kimi.decoding.programs import Programs
from kimi.errors import InputError
from kimi.program_cache import keep_programs
from kimi.reference.draft import Dspark
from kimi.reference.loading import load_drafter, load_model
from kimi.reference.model import K3
from kimi.reference.numerics import BFLOAT16, FLOAT32, Precision
from kimi.startup import find_devices
from kimi.text import Tokenizer
from kimi.tiny import ASSETS
from kimi.values import integer

PRECISIONS = {"float32": FLOAT32, "bfloat16": BFLOAT16}
DRAFT_FOLDER = "dspark"  # where a drafter lies inside its target's folder
_SCORED_TOKENS = 64  # likewise numbers of ids whose logits are asked for
_CAPACITY_STEP = 256  # context sizes are rounded up to this, so that few shapes are compiled


@dataclass
class LoadedModel:
    """A loaded model.

    Attributes:
      checkpoint: of the target.
      target: the reference model.
      drafter: its DSpark drafter, or None.
    """

    checkpoint: Checkpoint
    target: K3
    drafter: Dspark | None

    def __repr__(self) -> str:
        return f"LoadedModel({str(self.path)!r}, block_size={self.block_size})"

    @property
    def path(self) -> Path:
        """Folder of the checkpoint."""
        return self.checkpoint.path

    @property
    def config(self) -> ModelConfig:
        """Of the target."""
        return self.checkpoint.config

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back. Raises KimiError if there is none that fits."""
        return open_tokenizer(self.checkpoint)

    @property
    def block_size(self) -> int:
        """Rows of a drafted block, the newest token's included; 1 without a drafter."""
        return 1 if self.drafter is None else self.drafter.config.block_size

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits behind each id, float32 [T, vocab]. A program for every 64 ids of length.

        Raises:
          InputError: more ids than the model's context.
        """
        capacity_for(self.config, len(ids))
        padded = np.zeros(-(-len(ids) // _SCORED_TOKENS) * _SCORED_TOKENS, np.int32)
        padded[: len(ids)] = ids  # what stands behind them changes nothing before it
        return np.asarray(self.programs.logits(jnp.asarray(padded)))[: len(ids)]

    @cached_property
    def programs(self) -> Programs:
        """The compiled functions, shared by all decoders."""
        return Programs(self.target, self.config, self.drafter)

    def decoder(self, tokens: int) -> Decoder:
        """A decoder with room for `tokens` tokens, prompt included.

        Raises:
          InputError: see `capacity_for`.
        """
        return Decoder(self.programs, capacity_for(self.config, tokens))


def precision_of(dtype: str) -> Precision:
    """The rounding rule called `dtype`. Raises InputError for an unknown name."""
    if dtype not in PRECISIONS:
        raise InputError(f"dtype: expected one of {', '.join(PRECISIONS)}, found {dtype!r}")
    return PRECISIONS[dtype]


def open_target(model: str | Path = ASSETS, dtype: str = "float32") -> tuple[Checkpoint, K3]:
    """Checks and loads the target alone. Raises KimiError with one clear line."""
    find_devices()
    keep_programs()
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
    loaded = None
    if draft and (tensors := open_drafter(checkpoint, drafter)) is not None:
        loaded = load_drafter(tensors, tensors.config, precision, target=checkpoint)
    return LoadedModel(checkpoint, target, loaded)


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
