"""Reading a checkpoint: its tensors by name, as they are stored, checked against its config."""

import itertools
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kimi.checkpoint import names
from kimi.checkpoint.files import TensorInfo
from kimi.checkpoint.hub import resolve
from kimi.checkpoint.inspection import Row, Summary, mismatch, problems, unused_files
from kimi.checkpoint.names import TensorSpec
from kimi.checkpoint.shards import Shards
from kimi.checkpoint.values import check_finite
from kimi.config import DraftConfig, ModelConfig
from kimi.errors import CheckpointError

_LISTED = 10  # problems spelled out by `check`


@dataclass(frozen=True)
class PackedWeight:
    """An MXFP4 weight [F, D] as stored.

    Attributes:
      packed: [F, D/2] uint8.
      scale: [F, D/32] uint8.
    """

    packed: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.uint8]


class TensorStore(Mapping[str, npt.NDArray[Any]]):
    """The tensors of a folder by name.

    Reading maps the file that holds the tensor and copies nothing: `store[name]` is a read-only
    view in the stored dtype. The first read of a tensor checks shape and dtype against the config,
    and that all its values are finite; `check` looks at all names, shapes and dtypes at once,
    without reading data. Iteration is over the model's own tensors, in the order of the index.

    Attributes:
      path: the folder.
      specs: name -> what the config demands.

    Raises:
      CheckpointError, ConfigError: see `open`.
    """

    def __init__(self, path: Path):
        self.path = path
        self.shards = Shards(path)
        self.specs = self._specs(self.shards.files)
        self._names = {n: None for n in self.shards.files if not self._is_skipped(n)}
        self._read: set[str] = set()
        self._padding_seen = itertools.count()  # several threads may ask for the next number

    @classmethod
    def open(cls, path_or_repo: str | os.PathLike[str]) -> Self:
        """Opens a folder, or a repository of the hub (see `hub.resolve`).

        Raises:
          CheckpointError: no such folder or repository, or no weights in it.
          ConfigError: its config.json is missing or not supported.
        """
        return cls(resolve(path_or_repo))

    @abstractmethod
    def _specs(self, present: Container[str]) -> dict[str, TensorSpec]: ...

    _is_skipped: Callable[[str], bool]

    def _resolve(self, name: str) -> str | None:
        """The stored name meant by `name`, if there is one."""
        return name if name in self._names else None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._resolve(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """A tensor as the model wants it: see `TensorSpec.shapes`, whose first form it has.

        Raises:
          KeyError: no such tensor.
          CheckpointError: its file is broken, its shape or dtype unexpected, or a value not finite.
        """
        stored = self._resolve(name)
        if stored is None:
            raise KeyError(name)
        if stored not in self._read:
            self.info(stored)
        value = self.shards.stored(stored)
        if stored not in self._read:
            check_finite(f"{self.path}: {stored}", value)
            self._read.add(stored)
        return self.shaped(stored, value)

    def stored_name(self, name: str) -> str:
        """The name under which the files hold `name`. Raises CheckpointError if none does."""
        stored = self._resolve(name)
        if stored is None:
            raise CheckpointError(f"{self.path}: {name}: missing in the checkpoint")
        return stored

    def info(self, stored: str) -> TensorInfo:
        """Dtype, shape and place of a stored tensor.

        Raises:
          CheckpointError: its file is broken, or its shape or dtype is not what the model needs.
        """
        spec = self.specs.get(stored)
        if spec is not None and (problem := mismatch(stored, spec, self.shards)):
            raise CheckpointError(f"{self.path}: {problem}")
        return self.shards.info(stored)

    def shaped(self, stored: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A stored tensor in the first form of its spec, as `store[name]` gives it."""
        spec = self.specs.get(stored)
        if spec is None or value.shape == spec.shapes[0]:
            return value
        if not spec.padded:
            return value.reshape(spec.shapes[0])
        used = spec.shapes[0][0]
        if value.reshape(-1)[used:].any() and next(self._padding_seen) == 0:
            self._warn_of_padding(used)
        return value.reshape(-1)[:used]

    def _warn_of_padding(self, used: int) -> None:
        """One line for all tensors that hold more than is used: every layer has such a tensor."""
        odd = [n for n, spec in self.specs.items() if spec.padded and self._has_more(n, used)]
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        warnings.warn(
            f"{self.path}: {odd[0]}{more}: expected zeros beyond the first {used} values, found "
            "more: not used",
            stacklevel=4,
        )

    def _has_more(self, stored: str, used: int) -> bool:
        try:
            return stored in self._names and bool(
                self.shards.stored(stored).reshape(-1)[used:].any()
            )
        except CheckpointError:
            return False  # which is reported when it is read itself

    def problems(self) -> list[str]:
        """Everything that is wrong with names, shapes, dtypes and files, one line each."""
        return list(problems(self.shards, self.specs, self._is_skipped))

    def check(self) -> None:
        """Raises CheckpointError if there are `problems`: their number and the first of them."""
        lines = self.problems()
        if not lines:
            return
        if len(lines) == 1:
            where = "" if lines[0].startswith(str(self.path)) else f"{self.path}: "
            raise CheckpointError(where + lines[0])
        more = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
        text = "\n".join(f"  {line}" for line in lines[:_LISTED] + more)
        raise CheckpointError(f"{self.path}: {len(lines)} problems:\n{text}")

    def summary(self) -> Summary:
        """All stored tensors, also those that the model does not use. Raises CheckpointError."""
        rows = []
        unused = unused_files(self.shards, self._is_skipped)
        for name, file in self.shards.files.items():
            if file in unused:
                continue
            info = self.shards.info(name)
            known = self.specs[name].family if name in self.specs else "unknown"
            family = "not used" if self._is_skipped(name) else known
            rows.append(Row(name, info.shape, info.dtype, info.nbytes, family, file))
        return Summary(tuple(rows))


class Checkpoint(TensorStore):
    """A Kimi K3 checkpoint; its vision part is skipped.

    Names are those of the published index, whatever spelling the files have (see
    `names.Spelling`); their prefix `language_model.` may be left out.

    Attributes:
      config: of the text model.
    """

    def __init__(self, path: Path):
        self.config = ModelConfig.from_dir(path)
        super().__init__(path)
        self._spelling = names.Spelling.of(self.shards.files)

    _is_skipped = staticmethod(names.is_skipped_target)

    def _specs(self, present: Container[str]) -> dict[str, TensorSpec]:
        return names.target_tensors(self.config, present)

    def _resolve(self, name: str) -> str | None:
        return next((n for n in (name, self._spelling.stored(name)) if n in self._names), None)


class DraftCheckpoint(TensorStore):
    """A DSpark drafter. Its embedding and head may be absent: the target's then stand in.

    Attributes:
      config: of the drafter.
    """

    def __init__(self, path: Path):
        self.config = DraftConfig.from_dir(path)
        super().__init__(path)

    _is_skipped = staticmethod(names.is_skipped_draft)

    def _specs(self, present: Container[str]) -> dict[str, TensorSpec]:
        return names.draft_tensors(self.config, present)

    def shared(self, name: str, target: Checkpoint) -> npt.NDArray[Any]:
        """`embed_tokens.weight` or `lm_head.weight`: the drafter's own, else the target's.

        Raises:
          CheckpointError: see `__getitem__`.
        """
        if name in self:
            return self[name]
        return target["lm_head.weight" if name == "lm_head.weight" else f"model.{name}"]
