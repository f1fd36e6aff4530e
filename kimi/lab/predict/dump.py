"""All that depends on what one libtpu dumps: its flags, files, texts and tags, and its version.

The final schedule, VLIW bundles and the allocation table, is what it writes for the passes
`final_bundles` and `post-delay-converter`:

    0x11   : > { %s1_s2 = sadd.s32 1, %s0_s3 /* note */  ;;  %5 = sbr.rel (%p4_p0) target = ... }

A `>` counts one level of loop nesting, comments carry source locations, trace scopes and the
regions that start at the bundle, and a value's name ends in the physical register that holds it.
"""

import importlib.metadata
import importlib.util
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from kimi.errors import InputError, missing
from kimi.lab.predict.bundles import Allocation, Bundle, Instruction, Program
from kimi.lab.predict.units import slot_of, unit_op

KNOWN_LIBTPU = ("0.0.50.1",)
"""Versions whose dumps have been read: their format is documented nowhere."""

SCHEDULE, ALLOCATIONS = "final_bundles", "post-delay-converter"  # passes of the two texts
_DUMP_FILE = re.compile(rf"\d+-(.+)-\d+-({SCHEDULE}|{ALLOCATIONS})\.txt$")
# libtpu's own parts of the program, and the steps around a kernel.
_NOT_KERNELS = ("<", "TLP")

# Tags, or parts of them, in the allocation table.
SCRATCH = "scratch operand"  # buffers and semaphores that a kernel asks for, numbered in order
NUMBERED = "allocation"  # what stands before the number
CONSTANT = "constant byte address"
PARTITION, ZEROS = "partition id location", ("replica id location", "address 0x0 - null")

_HEADER_END = "control target key end"
_BUNDLE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s*(?:[A-Z]{2})?\s*:\s?([> ]*)\{", re.M)
_COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
_MARK = re.compile("\x01(\\d+)\x02")
_INSTRUCTION = re.compile(r"(?:%(\S+) = )?([a-z_0-9.]+)\s*(.*)$", re.S)
_ATTRIBUTE = re.compile(r"\[(?:thread:\$\d+|resolvable:\$\w+)\]\s*")
_PREDICATE = re.compile(r"\(\s*(!?)%(p\w+)\s*(?:,\s*%(\w+))?\s*\)\s*,?|\(\s*(!?)(\d+)\s*\)\s*,?")
_TARGET = re.compile(r"target = \$region(\d+)")
_LOCATION = re.compile(r'loc\("([^"]*)":(\d+):')
_STARTED_REGION = re.compile(r"region (\d+)")
_ALLOCATION = re.compile(
    r"#(allocation\w+) \[shape = '([^']*)', space=(\w+), size = (0x[0-9a-f]+|\d+)"
    r"(?:, offset = (0x[0-9a-f]+|\d+))?[^\]]*?tag = '([^']*)'",
    re.S,
)


def require_libtpu() -> None:
    """Raises InputError if the compiler is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(f"predict: {missing('libtpu, the TPU compiler', 'tpu')}")


def require_known_libtpu() -> None:
    """Raises InputError if the compiler is not installed, or its dumps are not known."""
    require_libtpu()
    try:
        version = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        version = "one without a version"
    if version not in KNOWN_LIBTPU:
        raise InputError(
            f"libtpu: expected {' or '.join(KNOWN_LIBTPU)}, whose dumped schedules can be read, "
            f"found {version}: pip install libtpu=={KNOWN_LIBTPU[-1]}"
        )


def dump_flags(folder: Path, source_lines: bool) -> list[str]:
    """Flags of libtpu that write the schedule of every kernel into a folder.

    Args:
      source_lines: write source locations into the schedule. They displace the names of scopes.
    """
    flags = [
        f"--xla_jf_dump_to={folder}",
        "--xla_jf_dump_llo_text=true",
        f"--xla_jf_dump_llo_pass_label_regex=^({SCHEDULE}|{ALLOCATIONS})$",
        "--xla_enable_custom_call_region_trace=true",
    ]
    if source_lines:
        flags.append("--xla_mosaic_enable_llo_source_annotations=true")
    return flags


def schedule_files(files: Iterable[Path]) -> dict[str, dict[str, Path]]:
    """The dump files of every kernel and fusion that has a schedule: by its name and by pass."""
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(files):
        match = _DUMP_FILE.match(file.name)
        if match and not match[1].startswith(_NOT_KERNELS):
            found.setdefault(match[1], {})[match[2]] = file
    return {name: passes for name, passes in found.items() if SCHEDULE in passes}


def parse_bundles(text: str, where: str = "bundles") -> Program:
    """Parses a `final_bundles` dump.

    Raises:
      InputError: no bundle in the text; `where` names it.
    """
    header = text.find(_HEADER_END)
    if header >= 0:
        text = text[header + len(_HEADER_END) :]
    comments: list[str] = []

    def stash(match: re.Match[str]) -> str:
        comments.append(match[1])
        return f"\x01{len(comments) - 1}\x02"

    # Comments hold braces, commas and ";;": they leave the text before it is cut into instructions.
    text = _COMMENT.sub(stash, text)
    heads = list(_BUNDLE.finditer(text))
    if not heads:
        raise InputError(f"{where}: expected VLIW bundles ('0x1 : {{ ... }}'), found none")
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return Program(
        [_bundle(h, text[h.end() : e], comments) for h, e in zip(heads, ends, strict=True)]
    )


def _bundle(head: re.Match[str], body: str, comments: list[str]) -> Bundle:
    inner, _, after = body.rpartition("}")
    starts = [
        region
        for mark in _MARK.finditer(after)
        for segment in comments[int(mark[1])].split("::")
        if "Start" in segment
        for region in _STARTED_REGION.findall(segment)
    ]
    parsed = [p for part in inner.split(";;") if part.strip() for p in _instruction(part, comments)]
    instructions = [instruction for instruction, _ in parsed]
    ops = (unit_op(i.opcode, _token(i.result), text) for i, text in parsed)
    lines = Counter(i.location for i in instructions if i.location)
    return Bundle(
        address=int(head[1], 16),
        depth=head[2].count(">"),
        instructions=instructions,
        starts=starts,
        location=lines.most_common(1)[0][0] if lines else None,
        slots=Counter(slot_of(i.opcode) for i in instructions),
        unit_ops=tuple(op for op in ops if op),
    )


def _token(result: str | None) -> str | None:
    return re.sub(r"\W.*", "", result) if result else None


def _instruction(part: str, comments: list[str]) -> Iterator[tuple[Instruction, str]]:
    comment = " ".join(comments[int(mark[1])] for mark in _MARK.finditer(part))
    text = _MARK.sub("", part).strip()
    match = _INSTRUCTION.match(text)
    if not match:
        return
    result, opcode, rest = match.groups()
    rest = _ATTRIBUTE.sub("", rest)
    predicate, negated, otherwise = None, False, None
    if guard := _PREDICATE.search(rest):
        predicate, otherwise = guard[2] or guard[5], guard[3]
        negated = bool(guard[1] or guard[4])
        rest = rest[: guard.start()] + rest[guard.end() :]
    if target := _TARGET.search(rest):
        operands = [target[1]]
    else:
        operands = _split(rest)
    line = _LOCATION.search(comment)
    location = f"{line[1].rsplit('/', 1)[-1]}:{line[2]}" if line else None
    yield (
        Instruction(result, opcode, operands, predicate, negated, otherwise, comment, location),
        text,
    )


def _split(text: str) -> list[str]:
    """Splits at top-level commas."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "[(") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    if current.strip():
        parts.append(current.strip())
    return parts


def parse_allocations(text: str) -> list[Allocation]:
    """The buffers of a kernel, from a dump of the pass `post-delay-converter`; may be empty."""
    found: dict[str, Allocation] = {}
    for name, shape, space, size, offset, tag in _ALLOCATION.findall(text):
        at = int(offset, 0) if offset else None
        found.setdefault(name, Allocation(name, shape, space, int(size, 0), at, tag))
    return list(found.values())
