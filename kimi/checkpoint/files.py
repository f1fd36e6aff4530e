"""One safetensors file, mapped lazily, with a message for every way in which it can be broken.

Layout: 8 bytes little-endian header length N; N bytes of JSON, tensor name -> dtype, shape and
[start, end) relative to the data; then the data, without gaps.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeGuard

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kimi.errors import CheckpointError
from kimi.fields import JsonError, parse_json
from kimi.values import shown

DTYPES: dict[str, np.dtype] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "U8": np.dtype(np.uint8),
    "F8_E8M0": np.dtype(np.uint8),  # a scale byte is its bits: numpy has no such number
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I64": np.dtype("<i8"),
}
_PREFIX_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is.

    Attributes:
      dtype: name in the header; only tensors whose name is a key of `DTYPES` can be read.
      shape: axes.
      start, end: bytes within the data part.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return self.end - self.start


class SafetensorsFile:
    """A safetensors file.

    Opening reads and checks the header and maps the data, which is read when it is touched.

    Attributes:
      path: the file.
      tensors: name -> `TensorInfo`, in the order of the data.
      metadata: what the header says beside them; unchecked.

    Raises:
      CheckpointError: the file is missing, truncated or malformed; the message says where and how.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                header = self._read_header(file.read(_PREFIX_BYTES), size)
                raw = file.read(header)
        except FileNotFoundError:
            self._fail("no such file")
        except OSError as e:
            self._fail(f"cannot be read: {e.strerror}")
        entries = self._parse(raw)
        self.metadata = entries.pop("__metadata__", None)
        self.tensors = self._table(entries)
        self._data_start = _PREFIX_BYTES + header
        self._check_data(size - self._data_start)
        self._map = np.memmap(self.path, np.uint8, mode="r")

    def __getitem__(self, name: str) -> npt.NDArray[np.generic]:
        """A read-only view of a tensor in its stored dtype; copies nothing.

        Raises:
          KeyError: no such tensor.
          CheckpointError: its dtype has no counterpart here.
        """
        info = self.tensors[name]
        if info.dtype not in DTYPES:
            self._fail(
                f"{name}: dtype: expected one of {', '.join(DTYPES)}, found {shown(info.dtype)}"
            )
        raw = self._map[self._data_start + info.start : self._data_start + info.end]
        return np.asarray(raw).view(DTYPES[info.dtype]).reshape(info.shape)

    def offset(self, name: str) -> int:
        """Where the values of a tensor begin, in bytes from the start of the file."""
        return self._data_start + self.tensors[name].start

    def _fail(self, problem: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {problem}") from None

    def _read_header(self, prefix: bytes, size: int) -> int:
        """The header's length, checked against the size of the file."""
        if len(prefix) < _PREFIX_BYTES:
            self._fail(f"expected at least {_PREFIX_BYTES} bytes, found {size}")
        length: int = struct.unpack("<Q", prefix)[0]
        if not 2 <= length <= _MAX_HEADER_BYTES:
            self._fail(
                f"expected a header of 2 to {_MAX_HEADER_BYTES} bytes, found length {length}: "
                "this is no safetensors file"
            )
        if _PREFIX_BYTES + length > size:
            expected = _PREFIX_BYTES + length
            self._fail(f"truncated within the header: expected {expected} bytes, found {size}")
        return length

    def _parse(self, raw: bytes) -> dict[str, object]:
        try:
            entries = parse_json(raw.decode("utf-8"))
        except UnicodeDecodeError as e:
            self._fail(f"header: not UTF-8 at byte {e.start}")
        except JsonError as e:
            self._fail(f"header: {e}")
        if not isinstance(entries, dict):
            self._fail(f"header: expected a JSON object, found {type(entries).__name__}")
        return entries

    def _table(self, entries: dict[str, object]) -> dict[str, TensorInfo]:
        infos = {name: self._info(name, entry) for name, entry in entries.items()}
        # Empty tensors share their start with the next one.
        return dict(sorted(infos.items(), key=lambda item: (item[1].start, item[1].end)))

    def _info(self, name: str, entry: object) -> TensorInfo:
        if not name.isprintable():
            self._fail(f"header: {shown(name)}: expected a printable name")
        if not isinstance(entry, dict):
            self._fail(f"{name}: expected a JSON object in the header, found {shown(entry)}")
        dtype: object = entry.get("dtype")
        shape: object = entry.get("shape")
        offsets: object = entry.get("data_offsets")
        if not isinstance(dtype, str):
            self._fail(f"{name}: dtype: expected the name of one, found {shown(dtype)}")
        if not _are_sizes(shape):
            self._fail(f"{name}: shape: expected a list of sizes, found {shown(shape)}")
        if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            self._fail(f"{name}: data_offsets: expected [start, end], found {shown(offsets)}")
        info = TensorInfo(dtype, tuple(shape), offsets[0], offsets[1])
        if dtype not in DTYPES:
            return info  # of any size: the model has no such tensor, or `mismatch` refuses it
        # Python integers, as the product of a malicious shape overflows 64 bits.
        expected = DTYPES[dtype].itemsize
        for axis in info.shape:
            expected *= axis
        if info.nbytes != expected:
            self._fail(
                f"{name}: expected {expected} bytes for {dtype} {list(shape)}, found data_offsets "
                f"of {info.nbytes}"
            )
        return info

    def _check_data(self, nbytes: int) -> None:
        """The tensors must cover the data exactly."""
        covered, last = 0, "the header"
        for name, info in self.tensors.items():
            if info.start != covered:
                kind = "overlaps" if info.start < covered else "leaves a gap after"
                self._fail(
                    f"{name}: {kind} {last}: expected data_offsets to start at {covered}, "
                    f"found {info.start}"
                )
            covered, last = info.end, name
        if nbytes < covered:
            self._fail(f"truncated: expected {covered} bytes of data, found {nbytes}")
        if nbytes > covered:
            self._fail(
                f"expected {covered} bytes of data, found {nbytes}: {nbytes - covered} extra"
            )


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)
