"""What a checkpoint holds, and everything that is wrong with it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from kimi.checkpoint.names import TensorSpec
from kimi.checkpoint.shards import Shards
from kimi.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Row:
    """One stored tensor.

    Attributes:
      name, shape, dtype: as stored; dtype is the safetensors name.
      nbytes: size of the values.
      family: part of the model, "not used" or "unknown".
      shard: name of the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    family: str
    shard: str


@dataclass(frozen=True)
class Summary:
    """All stored tensors, in the order of the index."""

    rows: tuple[Row, ...]

    @cached_property
    def bytes_by_family(self) -> dict[str, int]:
        """Bytes of every family, largest first."""
        sizes: Counter[str] = Counter()
        for row in self.rows:
            sizes[row.family] += row.nbytes
        return dict(sizes.most_common())

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(row.nbytes for row in self.rows)


def mismatch(name: str, spec: TensorSpec, shards: Shards) -> str | None:
    """What is wrong with the shape or dtype of a tensor that is there. Raises CheckpointError."""
    info = shards.info(name)
    if not spec.allows(info.shape):
        return f"{name}: expected shape {spec.expected()}, found {list(info.shape)}"
    if info.dtype not in spec.dtypes:
        return f"{name}: expected dtype {' or '.join(spec.dtypes)}, found {info.dtype}"
    return None


def problems(
    shards: Shards, specs: Mapping[str, TensorSpec], is_skipped: Callable[[str], bool]
) -> Iterator[str]:
    """Compares files, index and config; one line per problem.

    A file that cannot be read is one problem, its tensors are none.
    """
    unused = unused_files(shards, is_skipped)
    readable, broken = _open_all(shards, unused)
    yield from broken
    for file in readable:
        for name in shards.file(file).tensors:
            if name not in shards.files:
                yield f"{name}: in {file}, but not in the index"
            elif shards.files[name] != file:
                yield f"{name}: in {file}, but the index says {shards.files[name]}"
    absent = [
        name
        for name, file in shards.files.items()
        if file in readable and name not in shards.file(file).tensors
    ]
    for name in absent:
        yield f"{name}: expected in {shards.files[name]}, as the index says, found no such tensor"
    unusable = set(absent)
    for name, spec in specs.items():
        if name not in shards.files:
            yield f"{name}: missing: expected {' or '.join(spec.dtypes)} {spec.expected()}"
        elif shards.files[name] in readable and name not in unusable:
            problem = mismatch(name, spec, shards)
            if problem is not None:
                yield problem
    for name in shards.files:
        if name not in specs and not is_skipped(name):
            yield f"{name}: no tensor of this model"
    if shards.total_size is not None and not broken and not absent and not unused:
        size = sum(shards.info(name).nbytes for name in shards.files)
        if size != shards.total_size:
            yield f"expected {shards.total_size} bytes of tensors, as the index says, found {size}"


def unused_files(shards: Shards, is_skipped: Callable[[str], bool]) -> set[str]:
    """Files that are not there and need not be: none of their tensors is used."""
    used = {file for name, file in shards.files.items() if not is_skipped(name)}
    absent = set(shards.files.values()) - used
    return {file for file in absent if not (shards.path / file).exists()}


def _open_all(shards: Shards, unused: set[str]) -> tuple[dict[str, None], list[str]]:
    """Names of the files that can be read, in order, and what is wrong with the others."""
    readable: dict[str, None] = {}
    broken = []
    for file in dict.fromkeys(shards.files.values()):
        if file in unused:
            continue
        try:
            shards.file(file)
        except CheckpointError as e:
            broken.append(str(e))
        else:
            readable[file] = None
    return readable, broken
