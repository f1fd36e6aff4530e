"""Rows of a data set: from a file, or from the hub."""

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi.errors import InputError, missing
from kimi.fields import JsonError, parse_json
from kimi.files import read_lines
from kimi.values import shown

Row = dict[str, str]


@dataclass(frozen=True)
class HubFile:
    """One file of a data set on the hub.

    Attributes:
      repository, name: where it lies.
      license_gate: whether its conditions must be accepted before it can be had.
    """

    repository: str
    name: str
    license_gate: bool = False

    def fetch(self) -> Path:
        """The file in the hub's cache, downloaded if it is not there.

        Raises:
          InputError: it cannot be had; with what can be done.
        """
        from huggingface_hub import hf_hub_download  # slow to import, and local files do without

        try:
            return Path(hf_hub_download(self.repository, self.name, repo_type="dataset"))
        except Exception as e:  # the hub raises its own, httpx's and the system's errors
            reason = (str(e).split("\n")[0] or type(e).__name__).rstrip(".")
            gate = (
                f"accept the conditions at https://huggingface.co/datasets/{self.repository} and "
                "log in with `hf auth login` or HF_TOKEN, or "
                if self.license_gate
                else ""
            )
            raise InputError(
                f"{self.repository}: {self.name}: cannot be had from the hub: {reason}: {gate}give "
                "a copy with --data FILE (.jsonl, .csv or .parquet)"
            ) from e


@dataclass(frozen=True)
class Table:
    """The rows of a file.

    Attributes:
      path: of the file.
      sha256: of its bytes, hexadecimal.
      rows: the columns asked for, as text.
    """

    path: Path
    sha256: str
    rows: tuple[Row, ...]


def read(source: str | HubFile, columns: tuple[str, ...]) -> Table:
    """Reads a table; its format is told by the name's ending.

    Args:
      source: a .jsonl, .csv or .parquet file.
      columns: that every row must have, none of them empty.
    Raises:
      InputError: the file is missing, of another kind, malformed, or without these columns.
    """
    path = source.fetch() if isinstance(source, HubFile) else Path(source)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: expected a file {', '.join(_READERS)}, found {path.suffix!r}")
    try:
        data = path.read_bytes()
        rows = reader(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror or e}") from None
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: expected UTF-8, found {e.object[e.start]:#x}") from None
    if not rows:
        raise InputError(f"{path}: expected at least one row, found none")
    kept = tuple(_columns(row, columns, f"{path}: row {i}") for i, row in enumerate(rows, start=1))
    return Table(path, hashlib.sha256(data).hexdigest(), kept)


def _columns(row: dict[str, Any], columns: tuple[str, ...], where: str) -> Row:
    for name in columns:
        value = row.get(name)
        if not isinstance(value, str) or not value.strip():
            found = "no such column" if name not in row else shown(value)
            raise InputError(f"{where}: {name}: expected a text, found {found}")
    return {name: row[name] for name in columns}


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in read_lines(path):
        try:
            row = parse_json(line)
        except JsonError as e:
            raise InputError(f"{path}: line {number}: {e}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number}: expected an object, found {shown(row)}")
        rows.append(row)
    return rows


def _read_csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except csv.Error as e:
        raise InputError(f"{path}: not valid CSV: {e}") from None
    for number, row in enumerate(rows, start=1):
        if None in row:  # a comma or a quote that belongs to a text: the columns are not these
            raise InputError(f"{path}: row {number}: expected {len(row) - 1} columns, found more")
    return rows


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError(f"{path}: {missing('pyarrow', 'eval')}") from None
    try:
        return parquet.read_table(path).to_pylist()
    except ArrowException as e:
        raise InputError(f"{path}: not valid Parquet: {str(e).splitlines()[0]}") from None


_READERS = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}
