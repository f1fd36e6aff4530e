"""What a core of the published decoder holds, that this project is measured against, and when.

EP8 x TP4 experts, FP8 gate and up beside MXFP4 down; some dense matrices are held whole by every
core or pair; one buffer per matrix, and expert slots that lie on the attention's buffers.
"""

from dataclasses import dataclass
from functools import cached_property

from kimi.config import ModelConfig
from kimi.kernels.chip import LANES, SUBLANES, round_up

RANKS, EXPERT_GROUPS = 32, 8
SLOTS = 4  # experts in flight
POSITIONS = 128  # of a cache tile


def matrix_rows(inputs: int, outputs: int) -> int:
    """Rows of 128 words of a bfloat16 matrix."""
    return inputs // 2 * outputs // LANES


@dataclass(frozen=True)
class Peer:
    """What a core of that decoder holds; `rows` tokens of one sequence behind `context` others.

    A matrix is (inputs, outputs) of bfloat16 in panels of 128 columns.
    """

    config: ModelConfig
    rows: int
    context: int

    @cached_property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """All dense matrices of a layer on one core."""
        c = self.config
        hidden, latent = c.hidden_size, c.routed_expert_hidden_size
        heads = c.num_attention_heads // RANKS * LANES
        shared = c.shared_intermediate_size // RANKS
        return {
            # The low-rank decay, q_a, kv_a and router halves are held whole, on purpose.
            "kda_in": (hidden, 4 * heads + LANES),
            "decay": (hidden, LANES),
            "kda_out": (2 * heads, hidden // 2),
            "q_a": (hidden, c.q_lora_rank),
            "kv_a": (hidden, round_up(c.latent_cache_width, LANES)),
            "q_b": (c.q_lora_rank, 2 * heads),
            "kv_b": (c.kv_lora_rank, 2 * heads),
            "gate": (hidden, heads),
            "mla_out": (2 * heads, hidden // 2),
            "router": (hidden, round_up(c.num_experts // 2, LANES // 2)),
            "latent_down": (hidden, round_up(latent // RANKS, LANES)),
            "shared_in": (hidden, 2 * shared),
            "shared_out": (shared, hidden),
            "latent_up": (latent, round_up(hidden // EXPERT_GROUPS, 2 * LANES)),
        }

    @cached_property
    def buffers(self) -> dict[str, tuple[str, int]]:
        """Buffer and first row of every matrix; those of one line lie side by side."""
        lines = (
            ("pool", ("kda_in", "decay", "kda_out")),
            ("pool", ("q_a", "kv_a")),
            ("router", ("router",)),
            ("late", ("q_b", "kv_b", "gate", "mla_out")),
            ("late", ("latent_down", "shared_in", "shared_out", "latent_up")),
        )
        found = {}
        for buffer, names in lines:
            row = 0
            for name in names:
                found[name] = buffer, row
                row += matrix_rows(*self.matrices[name])
        return found

    def buffer_rows(self, buffer: str) -> int:
        """Rows of a buffer."""
        ends = [
            row + matrix_rows(*self.matrices[n])
            for n, (b, row) in self.buffers.items()
            if b == buffer
        ]
        return max(*ends, SLOTS * self.expert_rows if buffer == "pool" else 0)

    @property
    def expert_width(self) -> int:
        """A core's share of an expert's inner width."""
        return self.config.moe_intermediate_size // (RANKS // EXPERT_GROUPS)

    @cached_property
    def expert_parts(self) -> tuple[int, ...]:
        """Rows of gate and up, their scales, down, its scales."""
        panels = 2 * self.expert_width // LANES
        latent = self.config.routed_expert_hidden_size
        return (
            latent // 4 * panels,
            SUBLANES * panels,
            self.expert_width // 8 * latent // LANES,
            self.expert_width // 32 * latent // LANES // 4,
        )

    @property
    def expert_rows(self) -> int:
        """Rows of an expert."""
        return sum(self.expert_parts)

    @property
    def cache_panels(self) -> int:
        """Panels of the attention's cache: a key of 256 and a value of 128 for each head."""
        return 3 * self.config.num_attention_heads // RANKS

    @property
    def cache_tiles(self) -> int:
        """Tiles of positions that attention reads: two are in flight."""
        return max(2, -(-self.context // POSITIONS))
