"""Readers on small package trees written in the packages' own formats."""

import gzip
import struct
import zlib
from pathlib import Path

import pytest

from kimi.errors import InputError
from kimi.lab.train import sources

LONG = "It is a truth universally acknowledged, that a single man wants a wife."


def put(root: Path, path: str, data: bytes) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def r_object(lines: list[str], kind: int = 16) -> bytes:
    """One object of an R lazy-load database."""
    data = b"X\n" + struct.pack(">iii", 3, 0x40201, 0x30500) + struct.pack(">i", 5) + b"UTF-8"
    data += struct.pack(">ii", kind, len(lines))
    for line in lines:
        text = line.encode()
        data += struct.pack(">ii", 0x40009, len(text)) + text
    return struct.pack(">I", len(data)) + zlib.compress(data)


RDB = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"


def test_austen_joins_lines_and_drops_headings(tmp_path: Path):
    first = ["EMMA", "", "CHAPTER I: " + LONG, "", LONG[:40].strip(), "“_so_” it’s—£20,000 " + LONG]
    second = ["PERSUASION", "", LONG]
    put(tmp_path, RDB, r_object(first) + r_object(second))
    assert sources.austen(tmp_path) == [
        LONG[:40].strip() + ' "so" it\'s--£20,000 ' + LONG,
        LONG,
    ]


def test_austen_refuses_another_kind_of_object(tmp_path: Path):
    put(tmp_path, RDB, r_object([LONG], kind=19))
    with pytest.raises(InputError, match="Rdata.rdb: expected version 3 character vectors"):
        sources.austen(tmp_path)


def sword_testament(root: Path, name: str, books: list[str]) -> None:
    blocks = [zlib.compress(book.encode()) for book in books]
    index, offset = b"", 0
    for block, book in zip(blocks, books, strict=True):
        index += struct.pack("<III", offset, len(block), len(book))
        offset += len(block)
    module = "usr/share/sword/modules/texts/ztext/engWEB2015eb"
    put(root, f"{module}/{name}.bzs", index + struct.pack("<III", 0, 0, 0))
    put(root, f"{module}/{name}.bzz", b"".join(blocks))


def test_bible_markup_becomes_paragraphs(tmp_path: Path):
    poem = f"<lg><l>{LONG}</l><l>He said<note>or: spoke</note>—“yes” &amp; more</l></lg>"
    chapter = f'<chapter osisID="Ps.1"/><title>A title {LONG}</title>'
    sword_testament(tmp_path, "ot", [f'{chapter}{poem}<div type="x-p" sID="1"/>{LONG} ¶ Amen.'])
    sword_testament(tmp_path, "nt", [f"<chapter>{LONG} naïve", "<chapter>short"])
    assert sources.world_english_bible(tmp_path) == [
        f'{LONG} He said -- "yes" & more',
        f"{LONG} Amen.",
    ]


def king_james(root: Path, lines: list[str]) -> None:
    """A stand-in for the reader program, which prints the file next to its data."""
    program = put(root, "usr/bin/bible", b'#!/bin/sh\n[ "$1" = -f ] && exec cat bible.data\n')
    program.chmod(0o755)
    put(root, "usr/lib/bible.data", "".join(f"{line}\n" for line in lines).encode("latin-1"))


def test_king_james_groups_five_verses_within_a_chapter(tmp_path: Path):
    verse = "And {it} came [to] pass on the day of the first word."
    lines = [f"Ge1:{i} {verse}" for i in range(1, 8)] + [f"1Sa12:{i} {verse}" for i in (1, 2)]
    king_james(tmp_path, lines)
    plain = "And it came to pass on the day of the first word."
    expected = [" ".join([plain] * count) for count in (5, 2, 2)]
    assert sources.king_james_bible(tmp_path) == expected


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no library >&2; exit 127", "cannot print the text: no library"),
        ("echo Genesis 1", "expected 'Ge1:1 text' lines, found 'Genesis 1'"),
    ],
)
def test_king_james_reports_a_program_that_fails(tmp_path: Path, script: str, message: str):
    king_james(tmp_path, [])
    (tmp_path / "usr/bin/bible").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(InputError, match=message):
        sources.king_james_bible(tmp_path)


def test_wordnet_keeps_told_glosses(tmp_path: Path):
    def entry(word: str, gloss: str) -> str:
        return f"00001740 03 n 01 {word} 0 001 @ 00001930 n 0000 | {gloss}  \n"

    noun = "  1 licence text | not a gloss\n" + entry("tall_story", 'a lie; "he told one"')
    noun += entry("x", "short") + entry("Paris", "a city that is long enough to be kept, or not")
    for part in ("noun", "verb", "adv"):
        text = noun if part == "noun" else ""
        put(tmp_path, f"usr/share/wordnet/data.{part}", text.encode())
    put(tmp_path, "usr/share/wordnet/data.adj", entry("able(p)", LONG).encode())
    assert sources.wordnet(tmp_path) == [
        'tall story (noun): a lie; "he told one".',
        f"able (adj): {LONG}",
    ]


def test_devils_dictionary_starts_at_its_first_entry(tmp_path: Path):
    text = f"Preface {LONG}\n\nABASEMENT, n. {LONG}\n\nshort\n"
    put(tmp_path, "usr/share/dictd/devil.dict.dz", gzip.compress(text.encode("latin-1")))
    assert sources.devils_dictionary(tmp_path) == [f"ABASEMENT, n. {LONG}"]


def test_jargon_keeps_running_prose(tmp_path: Path):
    prose, table = f"{LONG} {LONG} {LONG}", "10.0 | 20.0 | 30.0 " * 20
    path = "usr/share/doc/jargon-text/jargon.txt.gz"
    put(tmp_path, path, gzip.compress(f"{prose}\n\n{table}\n\n{LONG}\n".encode()))
    assert sources.jargon_file(tmp_path) == [prose]


@pytest.mark.parametrize("source", sources.SOURCES, ids=lambda source: source.name)
def test_missing_files_are_named(tmp_path: Path, source: sources.Source):
    with pytest.raises(InputError, match="cannot be read|cannot print") as caught:
        source.read(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_package_is_named(tmp_path: Path):
    put(tmp_path, RDB, b"\0\0\0\1not zlib data")
    austen = sources.SOURCES[0]
    with pytest.raises(InputError, match="austen: cannot make sense of r-cran-janeaustenr"):
        austen.read(tmp_path)
