"""The safetensors files of a folder: one `model.safetensors`, or shards under an index."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kimi.checkpoint.files import SafetensorsFile, TensorInfo
from kimi.errors import CheckpointError, ConfigError
from kimi.fields import load_json
from kimi.values import shown

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Shards:
    """All tensors of a folder; files are opened when they are first needed.

    Attributes:
      path: the folder.
      files: tensor name -> name of the file that holds it.
      total_size: bytes of all tensors that the index claims, or None.

    Raises:
      CheckpointError: no weights here, or an index that is malformed.
    """

    def __init__(self, path: Path):
        self.path = path
        self.total_size: int | None = None
        self._opened: dict[str, SafetensorsFile] = {}
        if (path / INDEX).exists():
            self.files = self._read_index(path / INDEX)
        elif (path / SINGLE).exists():
            self.files = dict.fromkeys(self.file(SINGLE).tensors, SINGLE)
        else:
            raise CheckpointError(f"{path}: expected {INDEX} or {SINGLE}, found neither")

    def file(self, name: str) -> SafetensorsFile:
        """The file called `name`. Raises CheckpointError, see `SafetensorsFile`."""
        if name not in self._opened:
            self._opened[name] = SafetensorsFile(self.path / name)
        return self._opened[name]

    def info(self, tensor: str) -> TensorInfo:
        """Dtype, shape and place of a tensor that `files` lists. Raises CheckpointError."""
        return self._holder(tensor).tensors[tensor]

    def stored(self, tensor: str) -> npt.NDArray[np.generic]:
        """The tensor as it is on disk: a read-only view. Raises CheckpointError."""
        return self._holder(tensor)[tensor]

    def _holder(self, tensor: str) -> SafetensorsFile:
        file = self.file(self.files[tensor])
        if tensor not in file.tensors:
            raise CheckpointError(
                f"{tensor}: expected in {file.path.name}, as the index says, found no such tensor"
            )
        return file

    def _read_index(self, index: Path) -> dict[str, str]:
        try:
            data = load_json(index)
        except ConfigError as e:
            raise CheckpointError(str(e)) from None
        files = data.get("weight_map")
        if not isinstance(files, dict) or not files:
            raise CheckpointError(
                f"{index}: weight_map: expected an object of tensor and file names, found "
                f"{shown(files)}"
            )
        for tensor, file in files.items():
            if not tensor.isprintable():
                raise CheckpointError(f"{index}: {shown(tensor)}: expected a printable name")
            # A path could lead out of the folder.
            if not isinstance(file, str) or Path(file).name != file or not file.isprintable():
                raise CheckpointError(
                    f"{index}: {tensor}: expected the name of a file in this folder, found "
                    f"{shown(file)}"
                )
        metadata = data.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise CheckpointError(f"{index}: metadata: expected an object, found {shown(metadata)}")
        size = (metadata or {}).get("total_size")
        if isinstance(size, float) and size.is_integer():
            size = int(size)  # as some programs write it
        if size is not None and type(size) is not int:
            raise CheckpointError(
                f"{index}: metadata.total_size: expected an integer, found {shown(size)}"
            )
        self.total_size = size
        return files
