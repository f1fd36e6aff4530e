"""What a pre-sharded store says about itself, and for whom it is.

    manifest.json             this, written last: a store without it is unfinished
    rank-00/layer-000.safetensors   a layer of one rank: dense, vectors, experts
    rank-00/output.safetensors      head, output vectors and embedding of one rank

Each tensor is a piece of the array of that name (`arrays.segments`), and has its CRC-32 in the
file's own header (see `shard`) and in the manifest. Header and manifest each have one of itself.
"""

import dataclasses
import json
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kimi.checkpoint import Checkpoint
from kimi.checkpoint.fingerprint import fingerprint
from kimi.config import ModelConfig
from kimi.errors import ConfigError
from kimi.fields import load_json
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.loading.arrays import pieces
from kimi.loading.errors import DamagedError, StoreError
from kimi.values import shown

MANIFEST = "manifest.json"
FORMAT = "kimi-k3 pre-sharded weights"
STORE_VERSION = 2
# Raised whenever the same checkpoint gives other arrays. A test holds arrays to a hash, so that
# nobody forgets.
LAYOUT_VERSION = 1


@dataclass(frozen=True)
class Identity:
    """What a store is made of and for.

    Attributes:
      layout: model, mesh, expert format and tiles.
      fingerprint: of the checkpoint; see `checkpoint.fingerprint`.
      config: the checkpoint's config.json.
    """

    layout: Layout
    fingerprint: str
    config: dict[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint, layout: Layout) -> Self:
        """For this checkpoint. Raises CheckpointError if a file cannot be read."""
        return cls(layout, fingerprint(checkpoint), load_json(checkpoint.path / "config.json"))

    def fields(self) -> dict[str, Any]:
        """Everything by name, in the order in which differences are reported."""
        mesh = self.layout.mesh
        return {
            "store version": STORE_VERSION,
            "layout version": LAYOUT_VERSION,
            "checkpoint": self.fingerprint,
            "config": self.config,
            "mesh": [mesh.ranks, mesh.expert_parallel],
            "experts": str(self.layout.expert_format),
            "tile rows": self.layout.tile_rows,
        }

    def short_fields(self) -> dict[str, str]:
        """The same as texts, for the header of each file."""
        return {name: _short(value) for name, value in self.fields().items()}

    @classmethod
    def from_fields(cls, fields: dict[str, Any], where: str) -> Self:
        """The inverse.

        Raises:
          StoreError: a field is missing or malformed, or of another version.
        """
        expected = {"store version": STORE_VERSION, "layout version": LAYOUT_VERSION}
        for name, version in expected.items():
            if fields.get(name) != version:
                raise StoreError(
                    f"{where}: {name}: expected {version}, found {fields.get(name)!r}: it was made "
                    "by another version of this library"
                )
        try:
            with warnings.catch_warnings(action="ignore"):  # given when the checkpoint was read
                config = ModelConfig.from_dict(fields["config"], f"{where}: config")
            form = ExpertFormat(fields["experts"])
            layout = Layout(config, Mesh(*fields["mesh"]), form, fields["tile rows"])
            return cls(layout, str(fields["checkpoint"]), fields["config"])
        except (KeyError, TypeError, ValueError) as e:
            reason = f"missing {e}" if isinstance(e, KeyError) else str(e)
            raise StoreError(f"{where}: {reason}") from None


def check_same(where: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Raises StoreError naming the first field in which a store is not the one asked for."""
    for name, value in expected.items():
        if found.get(name) != value:
            raise StoreError(
                f"{where}: {name}: expected {_short(value)}, found {_short(found.get(name))}"
            )


def _short(value: object) -> str:
    if isinstance(value, dict):
        return f"one with CRC-32 {crc_of(value)}"
    return str(value)


def crc_of(value: object) -> str:
    """CRC-32 of a JSON value, 8 hexadecimal digits."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def seal(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields and their CRC-32."""
    return {"crc32": crc_of(fields), **fields}


def unseal(sealed: object) -> dict[str, Any] | None:
    """The inverse; None if the checksum is not theirs."""
    if not isinstance(sealed, dict):
        return None
    fields = {name: value for name, value in sealed.items() if name != "crc32"}
    return fields if sealed.get("crc32") == crc_of(fields) else None


@dataclass(frozen=True)
class FileRecord:
    """A finished file.

    Attributes:
      nbytes: its size.
      crc32: of each tensor, 8 hexadecimal digits.
    """

    nbytes: int
    crc32: dict[str, str]

    @classmethod
    def from_json(cls, entry: Any, where: str) -> Self:
        """Raises StoreError if this is no record."""
        match entry:
            case {"nbytes": int(nbytes), "crc32": dict(crc32)}:
                return cls(nbytes, crc32)
        raise StoreError(f"{where}: expected nbytes and crc32, found {entry!r}")


def rank_folder(rank: int | None) -> str:
    """The folder of a rank, below the store; None for a pattern of all."""
    return "rank-*" if rank is None else f"rank-{rank:02d}"


def file_name(layout: Layout, rank: int, piece: int) -> str:
    """Where a piece of a rank lies, below the store."""
    last = piece == layout.config.num_hidden_layers
    return f"{rank_folder(rank)}/{'output' if last else f'layer-{piece:03d}'}.safetensors"


def file_names(layout: Layout) -> dict[str, tuple[int, int]]:
    """All files of a store: name -> rank and piece, rank by rank."""
    return {
        file_name(layout, rank, piece): (rank, piece)
        for rank in range(layout.mesh.ranks)
        for piece in range(pieces(layout))
    }


@dataclass(frozen=True)
class Manifest:
    """The manifest of a finished store.

    Attributes:
      identity: what it is for.
      files: name -> record; one for each rank and piece.
    """

    identity: Identity
    files: dict[str, FileRecord]

    def text(self) -> str:
        """The file's content."""
        files = {name: dataclasses.asdict(self.files[name]) for name in sorted(self.files)}
        body = {"format": FORMAT, **self.identity.fields(), "files": files}
        return json.dumps(seal(body), indent=1) + "\n"

    @classmethod
    def read(cls, store: Path) -> Self:
        """Reads the manifest of a store.

        Raises:
          StoreError: there is none, or it is of another version, or incomplete.
          DamagedError: it is damaged.
        """
        path = store / MANIFEST
        if store.is_file():
            raise StoreError(f"{store}: expected the folder of a store, found a file")
        if not path.exists():
            what = "an unfinished store" if store.is_dir() else "no store"
            raise StoreError(f"{path}: no such file: {what}")
        try:
            sealed = load_json(path)
        except ConfigError as e:
            raise DamagedError(str(e)) from None
        fields = unseal(sealed)
        if fields is None:
            raise DamagedError(
                f"{path}: expected CRC-32 {shown(sealed.pop('crc32', None))}, found "
                f"{crc_of(sealed)}"
            )
        if fields.get("format") != FORMAT:
            raise StoreError(f"{path}: format: expected {FORMAT!r}, found {fields.get('format')!r}")
        identity = Identity.from_fields(fields, str(path))
        files = fields.get("files")
        expected = file_names(identity.layout)
        if not isinstance(files, dict) or files.keys() != expected.keys():
            raise StoreError(
                f"{path}: files: expected {len(expected)}, one for each rank and piece, found "
                f"{len(files) if isinstance(files, dict) else files!r}"
            )
        records = {n: FileRecord.from_json(files[n], f"{path}: {n}") for n in expected}
        return cls(identity, records)
