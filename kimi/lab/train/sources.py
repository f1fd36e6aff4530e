"""Readers of the prose sources: the files of a Debian package in, a list of paragraphs out.

Every reader takes the directory the packages were unpacked into and returns paragraphs of plain
text, each on one line, in the order of the book. What is left out, and why, stands at each reader.
"""

import gzip
import html
import re
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kimi.errors import InputError

SHORTEST_PARAGRAPH = 40
"""Paragraphs of at most this many characters are mostly headings and signatures: left out."""

_QUOTES = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'", "–": "-", "¶": ""})


@dataclass(frozen=True)
class Source:
    """A text, the Debian packages it comes in, and its reader."""

    name: str
    packages: tuple[str, ...]
    reader: Callable[[Path], list[str]]

    def read(self, root: Path) -> list[str]:
        """The paragraphs. Raises: InputError if the unpacked files are not what is expected."""
        try:
            return self.reader(root)
        except (zlib.error, struct.error, UnicodeDecodeError, IndexError) as error:
            packages = ", ".join(self.packages)
            raise InputError(f"{self.name}: cannot make sense of {packages}: {error}") from None


def austen(root: Path) -> list[str]:
    """Jane Austen's six novels, without chapter headings."""
    database = root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    paragraphs = []
    for lines in _r_character_vectors(_read(database), database):
        book = "\n".join(line.strip() for line in lines).replace("_", "")
        paragraphs += [
            p
            for p in _paragraphs(book, dash="--")
            if not re.match(r"(CHAPTER|VOLUME|Chapter)\b", p)
        ]
    return paragraphs


def world_english_bible(root: Path) -> list[str]:
    """A modern English Bible, without notes and titles.

    The result is a changed text and must not be called by the trademarked name of its source.
    """
    module = root / "usr/share/sword/modules/texts/ztext/engWEB2015eb"
    markup = "".join(_sword_text(module / "ot") + _sword_text(module / "nt"))
    markup = re.sub(r"<(note|title)\b.*?</\1>", "", markup, flags=re.DOTALL)
    breaks = r'<chapter[^>]*>|<div[^>]*type="(?:x-p|paragraph|chapter|section)[^>]*>'
    markup = re.sub(breaks, "\n\n", markup)
    markup = re.sub(r"<lb[^>]*>|</?l\b[^>]*>|<lg[^>]*>", " ", markup)
    text = html.unescape(re.sub(r"<[^>]+>", "", markup))
    return [p for p in _paragraphs(text) if p.isascii()]


def king_james_bible(root: Path) -> list[str]:
    """The King James Bible in paragraphs of up to five verses that never span chapters.

    The text is packed in a format of its own, so the package's reader program prints it.
    """
    program = root / "usr/bin/bible"
    try:
        # The program looks for its data in the current directory first.
        printed = subprocess.run(
            [program.resolve(), "-f", "Gen1:1-Rev22:21"],
            cwd=root / "usr/lib",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", b"").decode(errors="replace").strip() or str(error)
        raise InputError(f"{program}: cannot print the text: {_one_line(detail)}") from None
    paragraphs: list[list[str]] = []
    for line in printed.decode("latin-1").splitlines():
        match = re.match(r"\S+?\d+:(\d+) (.*)", line)
        if match is None:
            raise InputError(f"{program}: expected 'Ge1:1 text' lines, found {line[:60]!r}")
        if match[1] == "1" or len(paragraphs[-1]) == 5:
            paragraphs.append([])
        paragraphs[-1].append(match[2])
    joined = (re.sub(r"[\[\]{}]", "", " ".join(verses)) for verses in paragraphs)
    return [p for p in map(_clean, joined) if len(p) > SHORTEST_PARAGRAPH and p.isascii()]


def wordnet(root: Path) -> list[str]:
    """WordNet's glosses as "word (part of speech): definition.".

    Kept: glosses with an example sentence, and seven in ten of the longer plain ones on lower-case
    words, which otherwise would drown the rest in taxonomy.
    """
    entries = []
    for part in ("noun", "verb", "adj", "adv"):
        data = _read(root / f"usr/share/wordnet/data.{part}").decode("latin-1")
        for line in data.splitlines():
            if line.startswith(" ") or "|" not in line:
                continue
            fields, gloss = line.split("|", 1)
            word = re.sub(r"\(\w+\)", "", fields.split()[4]).replace("_", " ")
            gloss = gloss.strip()
            told = '"' in gloss or (len(gloss) > 40 and word.islower())
            if told and gloss.isascii() and len(gloss) < 300:
                entries.append(f"{word} ({part}): {gloss}.".replace("..", "."))
    return [e for i, e in enumerate(entries) if '"' in e or i * 2654435761 % 100 < 70]


def devils_dictionary(root: Path) -> list[str]:
    """Ambrose Bierce's Devil's Dictionary, from its first entry on."""
    path = root / "usr/share/dictd/devil.dict.dz"
    text = _gunzip(path).decode("latin-1")
    start = text.find("ABASEMENT")
    if start < 0:
        raise InputError(f"{path}: expected the entry ABASEMENT, found none")
    return [p for p in _paragraphs(text[start:]) if p.isascii()]


def jargon_file(root: Path) -> list[str]:
    """The Jargon File's running prose: long paragraphs of mostly letters, no tables or listings."""
    text = _gunzip(root / "usr/share/doc/jargon-text/jargon.txt.gz").decode("latin-1")
    return [p for p in _paragraphs(text) if p.isascii() and _is_prose(p)]


# The order decides which random position a block of text gets in the training stream.
SOURCES = (
    Source("austen", ("r-cran-janeaustenr",), austen),
    Source("web", ("sword-text-web",), world_english_bible),
    Source("kjv", ("bible-kjv-text", "bible-kjv"), king_james_bible),
    Source("wordnet", ("wordnet-base",), wordnet),
    Source("devil", ("dict-devil",), devils_dictionary),
    Source("jargon", ("jargon-text",), jargon_file),
)


def _is_prose(paragraph: str) -> bool:
    letters = sum(c.isalpha() or c == " " for c in paragraph)
    return len(paragraph) > 150 and paragraph.count(" ") > 25 and letters / len(paragraph) > 0.9


def _paragraphs(text: str, dash: str = " -- ") -> list[str]:
    """The paragraphs between blank lines; `dash` replaces an em dash."""
    cleaned = (_clean(p.replace("—", dash)) for p in re.split(r"\n\s*\n", text))
    return [p for p in cleaned if len(p) > SHORTEST_PARAGRAPH]


def _clean(text: str) -> str:
    return _one_line(text.translate(_QUOTES))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); the package may have changed"
        ) from None


def _gunzip(path: Path) -> bytes:
    try:
        return gzip.decompress(_read(path))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not gzip data ({error})") from None


def _sword_text(stem: Path) -> list[str]:
    """The books of one testament of a SWORD zText module: `.bzs` indexes the blocks of `.bzz`."""
    index, blocks = _read(stem.with_suffix(".bzs")), _read(stem.with_suffix(".bzz"))
    books = []
    for offset, size, _ in struct.iter_unpack("<III", index):
        if size:
            books.append(zlib.decompress(blocks[offset : offset + size]).decode())
    return books


def _r_character_vectors(database: bytes, path: Path) -> Iterator[list[str]]:
    """The objects of an R lazy-load database whose every object is one character vector.

    An object is its length (big endian), then a zlib stream of R's serialisation, version 3.
    """
    while database:
        stream = zlib.decompressobj()
        data = stream.decompress(database[4:])
        database = stream.unused_data
        yield _r_character_vector(data, path)


def _r_character_vector(data: bytes, path: Path) -> list[str]:
    def integer(at: int) -> int:
        return int(struct.unpack_from(">i", data, at)[0])

    # "X\n", three version numbers, the native encoding's length and name, then the vector's type.
    at = 18 + integer(14)
    if data[:2] != b"X\n" or integer(2) != 3 or integer(at) != 16:
        raise InputError(f"{path}: expected version 3 character vectors, found {data[:24].hex()}")
    count = integer(at + 4)
    at += 8
    lines = []
    for _ in range(count):
        size = integer(at + 4)
        lines.append(data[at + 8 : at + 8 + size].decode())
        at += 8 + size
    return lines
