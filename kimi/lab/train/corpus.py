"""The prose: Debian packages in, training and held-out token ids out.

`build` downloads the packages of `sources` with apt-get (run `apt-get update` first), unpacks them
and writes `DIR/text/SOURCE.txt`, one paragraph a line, `DIR/prose.npz`, and its held-out part alone
as `DIR/heldout_prose.npz`, the file that is shipped. Package files that already lie in
`DIR/packages` are used as they are, so a machine without apt can be given them.
"""

import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from kimi.assets import TINY_K3
from kimi.errors import InputError
from kimi.lab.train.sources import SOURCES
from kimi.text.tokenizer import Tokenizer

BLOCKS = 40
"""Each source is cut into this many blocks of whole paragraphs (and a small rest)."""

PROSE_FILE = "prose.npz"
"""Name of the corpus in the folder of a build."""

HELDOUT_FILE = "heldout_prose.npz"
"""Name of the held-out split on its own, as it is shipped."""

HELD_OUT_BLOCK = 20
"""The block of each source, counted from 0, that is never trained on."""

_SHUFFLE_SEED = 0


@dataclass(frozen=True)
class Prose:
    """Token ids, uint16, of documents that each end in [EOS]; a document is one block.

    Attributes:
      train: [T] the training blocks of all sources, shuffled.
      val: [T] the held-out blocks, in the order of the sources.
    """

    train: NDArray[np.uint16]
    val: NDArray[np.uint16]

    @classmethod
    def load(cls, path: Path) -> "Prose":
        """Reads what `save` wrote. Raises: InputError if the file is missing or something else."""
        try:
            with path.open("rb") as file, np.load(file) as arrays:
                return cls(arrays["train"], arrays["val"])
        except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
            raise InputError(f"{path}: expected train and val token ids: {error}") from None

    def save(self, path: Path) -> None:
        """Writes prose.npz."""
        np.savez(path, train=self.train, val=self.val)


def heldout_prose() -> NDArray[np.uint16]:
    """The shipped held-out split, [T] uint16: `Prose.val` of the corpus behind the model."""
    with np.load(TINY_K3 / HELDOUT_FILE) as arrays:
        val: NDArray[np.uint16] = arrays["val"]
    return val


def split(paragraphs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cut one source into blocks of paragraphs: (training blocks, held-out blocks).

    Raises: InputError if there are fewer paragraphs than blocks.
    """
    size = len(paragraphs) // BLOCKS
    if not size:
        raise InputError(f"prose: expected at least {BLOCKS} paragraphs, found {len(paragraphs)}")
    blocks = ["\n\n".join(paragraphs[i : i + size]) for i in range(0, len(paragraphs), size)]
    held_out = [blocks.pop(HELD_OUT_BLOCK)]
    return blocks, held_out


def tokenise(texts: Sequence[Sequence[str]], tokenizer: Tokenizer) -> Prose:
    """Split every source (a list of paragraphs) and turn the blocks into ids."""
    train: list[str] = []
    held_out: list[str] = []
    for paragraphs in texts:
        for blocks, more in zip((train, held_out), split(paragraphs), strict=True):
            blocks += more
    random.Random(_SHUFFLE_SEED).shuffle(train)
    return Prose(_ids(train, tokenizer), _ids(held_out, tokenizer))


def _ids(blocks: Sequence[str], tokenizer: Tokenizer) -> NDArray[np.uint16]:
    documents = [[*tokenizer.encode(block), tokenizer.special.eos] for block in blocks]
    return np.concatenate([np.array(ids, np.uint16) for ids in documents])


def fetch(package: str, directory: Path) -> Path:
    """The .deb file of a package in `directory`, downloaded unless it is there already.

    Raises: InputError if apt-get is missing or does not offer the package.
    """
    present = sorted(directory.glob(f"{package}_*.deb"))
    if not present:
        _run(
            ["apt-get", "download", package], directory, f"package {package}: cannot be downloaded"
        )
        present = sorted(directory.glob(f"{package}_*.deb"))
    if len(present) != 1:
        names = [path.name for path in present]
        raise InputError(f"package {package}: expected one file in {directory}, found {names}")
    return present[0]


def unpack(package_file: Path, root: Path) -> None:
    """Extract a .deb file below `root`. Raises: InputError if it is damaged or dpkg-deb missing."""
    command = ["dpkg-deb", "-x", package_file.name, str(root.resolve())]
    _run(command, package_file.parent, f"{package_file}: cannot be unpacked")


def _run(command: list[str], directory: Path, complaint: str) -> None:
    try:
        subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise InputError(
            f"{complaint}: {command[0]} not found (a Debian system is needed)"
        ) from None
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split()) or f"exit status {error.returncode}"
        raise InputError(f"{complaint}: {reason}") from None


def build(out: Path) -> Prose:
    """Make everything below `out`, printing one line for each source."""
    packages, root, text = out / "packages", out / "root", out / "text"
    for directory in (packages, root, text):
        directory.mkdir(parents=True, exist_ok=True)
    texts = []
    for source in SOURCES:
        files = [fetch(package, packages) for package in source.packages]
        for file in files:
            unpack(file, root)
        paragraphs = source.read(root)
        (text / f"{source.name}.txt").write_text("\n".join(paragraphs) + "\n", encoding="utf-8")
        characters = sum(map(len, paragraphs))
        names = ", ".join(file.stem for file in files)
        print(f"{source.name}: {len(paragraphs):,} paragraphs, {characters:,} characters ({names})")
        texts.append(paragraphs)
    prose = tokenise(texts, Tokenizer.from_dir(TINY_K3))
    prose.save(out / PROSE_FILE)
    np.savez_compressed(out / HELDOUT_FILE, val=prose.val)
    return prose
