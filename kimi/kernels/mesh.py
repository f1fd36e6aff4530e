"""Rank arithmetic: who holds which share, and who talks to whom. Only this knows the topology.

A rank is one TensorCore. On the 2x2x4 slice the bits of a rank are, from the lowest: the core of
the chip, x, y, and two bits of z; a host has the four chips of one z. Smaller meshes are prefixes:

    ranks 0, 1    the two cores of chip (0, 0, 0)          rank 5  = chip (0, 1, 0), core 1
    ranks 0-7     the 8 cores of host 0                    rank 26 = chip (1, 0, 3), core 0, host 3

Dense weights are divided over all ranks. Experts are divided twice: `expert_parallel` groups hold
different experts, and inside a group each of `tensor_parallel` ranks holds a slice of every expert.
The group is the low bits of the rank, so that the two cores of a chip belong to different groups
and a chip's load evens out. With 32 ranks and two groups (TP16xEP2):

    rank 0: experts 0, 2, 4, ..., slice 0          rank 1: experts 1, 3, 5, ..., slice 0
    rank 2: experts 0, 2, 4, ..., slice 1          rank 31: experts 1, 3, 5, ..., slice 15
"""

from dataclasses import dataclass
from typing import Protocol, Self

from kimi.codecs.mxfp4 import GROUP
from kimi.config import ModelConfig
from kimi.kernels.errors import LayoutError

RANKS = (1, 2, 4, 8, 16, 32)
CORES_PER_CHIP = 2
RANKS_PER_HOST = 8
# Slices of an expert beyond which weights get so narrow that waiting for more experts costs less.
MAX_EXPERT_SLICES = 16

Span = tuple[int, int]


class Bits(Protocol):
    """An integer that may be traced: `int`, or an array scalar inside a kernel."""

    def __xor__(self, other: int, /) -> Self: ...
    def __and__(self, other: int, /) -> Self: ...
    def __rshift__(self, other: int, /) -> Self: ...


@dataclass(frozen=True)
class Mesh:
    """A mesh of ranks.

    Attributes:
      ranks: 1, 2, 4, 8, 16 or 32.
      expert_parallel: groups of ranks with different experts, a divisor of `ranks`.

    Raises:
      LayoutError: other values.
    """

    ranks: int
    expert_parallel: int = 1

    def __post_init__(self) -> None:
        if type(self.ranks) is not int or self.ranks not in RANKS:
            raise LayoutError(f"mesh: ranks: expected one of {RANKS}, found {self.ranks}")
        known = type(self.expert_parallel) is int and self.expert_parallel in RANKS
        if not known or self.expert_parallel > self.ranks:
            raise LayoutError(
                f"mesh: expert_parallel: expected a power of two up to {self.ranks} ranks, "
                f"found {self.expert_parallel}"
            )

    @property
    def tensor_parallel(self) -> int:
        """Slices of every expert = ranks of an expert group."""
        return self.ranks // self.expert_parallel

    @property
    def name(self) -> str:
        """For tables: `TP16xEP2`."""
        return f"TP{self.tensor_parallel}xEP{self.expert_parallel}"

    def span(self, total: int, rank: int) -> Span:
        """The equal, contiguous share [start, stop) of `total` items that `rank` holds."""
        return share(total, self.ranks, rank)

    def local(self, total: int) -> int:
        """Items per rank."""
        return total // self.ranks

    # Peers. All take traced ranks and use shifts and masks only: scalar division is slow.

    def peer[R: Bits](self, rank: R, offset: int) -> R:
        """Peer number `offset` (1 to ranks - 1) in a reduce-scatter or all-gather.

        In every round each rank has another peer. Links are shared all the same: on the torus every
        offset to another chip puts two messages on some link, its chip's two cores' among them.
        """
        return rank ^ offset

    @property
    def offsets(self) -> range:
        """The offsets of all peers; empty for one rank."""
        return range(1, self.ranks)

    def host[R: Bits](self, rank: R) -> R:
        """The host that a rank belongs to."""
        return rank >> (RANKS_PER_HOST.bit_length() - 1)

    def coordinates(self, rank: int) -> tuple[int, int, int, int]:
        """x, y, z and core of a rank on the 2x2x4 slice."""
        return rank >> 1 & 1, rank >> 2 & 1, rank >> 3, rank & 1

    def rank_of(self, x: int, y: int, z: int, core: int) -> int:
        """The inverse of `coordinates`: orders JAX devices by `coords` and `core_on_chip`."""
        return core | x << 1 | y << 2 | z << 3

    # Experts.

    def expert_group[R: Bits](self, rank: R) -> R:
        """Which experts a rank holds: those with `owner(expert)` equal to this."""
        return rank & (self.expert_parallel - 1)

    def expert_slice[R: Bits](self, rank: R) -> R:
        """Which slice of them, 0 to tensor_parallel - 1."""
        return rank >> (self.expert_parallel.bit_length() - 1)

    def owner[R: Bits](self, expert: R) -> R:
        """The group that holds an expert. Neighbours are spread, as popular ones may cluster."""
        return expert & (self.expert_parallel - 1)

    def local_expert[R: Bits](self, expert: R) -> R:
        """The position of an expert among those of its group."""
        return expert >> (self.expert_parallel.bit_length() - 1)

    def expert_span(self, width: int, rank: int) -> Span:
        """The share of an expert's inner width that a rank holds."""
        return share(width, self.tensor_parallel, self.expert_slice(rank))

    def check(self, config: ModelConfig) -> None:
        """Raises LayoutError, naming value and rule, if the model cannot be divided so."""
        for name, value in _divided(config).items():
            if value % self.ranks:
                raise LayoutError(
                    f"mesh: {name}: expected a multiple of {self.ranks} ranks, found {value}"
                )
        if config.num_experts % self.expert_parallel:
            raise LayoutError(
                f"mesh: num_experts: expected a multiple of {self.expert_parallel} expert groups, "
                f"found {config.num_experts}"
            )
        width = config.moe_intermediate_size
        if width % (GROUP * self.tensor_parallel):
            raise LayoutError(
                f"mesh: moe_intermediate_size: expected {self.tensor_parallel} slices of whole "
                f"MXFP4 groups of {GROUP}, found {width}: use more expert groups"
            )


def share(total: int, parts: int, index: int) -> Span:
    """Part `index` of `total` items divided into `parts` equal parts."""
    size = total // parts
    return index * size, (index + 1) * size


def _divided(c: ModelConfig) -> dict[str, int]:
    """Every width that is divided over all ranks."""
    return {
        "num_attention_heads": c.num_attention_heads,
        "linear_attn_config.num_heads": c.kda.num_heads,
        "linear_attn_config.head_dim": c.kda.head_dim,
        "hidden_size": c.hidden_size,
        "q_lora_rank": c.q_lora_rank,
        "kv_lora_rank + qk_rope_head_dim": c.latent_cache_width,
        "routed_expert_hidden_size": c.routed_expert_hidden_size,
        "num_experts": c.num_experts,
        "shared expert width": c.shared_intermediate_size,
        "intermediate_size": c.intermediate_size,
        "vocab_size": c.vocab_size,
    }


def meshes(config: ModelConfig, ranks: int) -> tuple[Mesh, ...]:
    """All meshes of so many ranks that the model can be divided over, fewest groups first.

    Raises:
      LayoutError: there is none; the message is that of the most expert groups.
    """
    possible, problem = [], LayoutError(f"mesh: ranks: expected one of {RANKS}, found {ranks}")
    for groups in RANKS:
        if groups <= ranks:
            mesh = Mesh(ranks, groups)
            try:
                mesh.check(config)
                possible.append(mesh)
            except LayoutError as e:
                problem = e
    if not possible:
        raise problem
    return tuple(possible)


def default_mesh(config: ModelConfig, ranks: int) -> Mesh:
    """The mesh with the fewest expert groups, but not more than `MAX_EXPERT_SLICES` slices.

    Raises:
      LayoutError: the model cannot be divided over so many ranks.
    """
    possible = meshes(config, ranks)
    return next((m for m in possible if m.tensor_parallel <= MAX_EXPERT_SLICES), possible[-1])
