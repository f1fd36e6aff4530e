"""What a chunk of a prompt needs and is predicted to take; every time in it is predicted."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kimi.kernels.chip import ROW_BYTES, TPU_V7
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.plan import Plan
from kimi.kernels.stream import Stream
from kimi.lab.predict.compile import Compilation
from kimi.lab.predict.costs import CostModel
from kimi.lab.predict.module_time import Cost, Item
from kimi.lab.predict.prompts import ChunkOptions
from kimi.prefill.delta import CHUNK

# Named scopes of `kimi.prefill`, and names of its kernels, that the report tells apart.
PARTS = {
    "prefill_experts": "experts, kernel",
    "prefill_delta": "delta rule, kernel",
    "KDA": "KDA, the rest",
    "attend": "MLA, attention",
    "MLA": "MLA, the rest",
    "mix": "residual mix",
    "route": "router",
    "routed": "experts, the rest",
    "MLP": "shared and dense MLP",
    "drafter": "drafter's context",
    "embedding": "embedding",
}
EXCHANGES, REST = "exchanges", "unnamed"
_TOP = 10


@dataclass(frozen=True)
class ChunkFigures:
    """One chunk.

    Attributes:
      start: tokens before it.
      cost: of everything.
      parts: milliseconds by part, longest first.
      weight_bytes, cache_bytes: of its HBM traffic, from the weights' and the cache's sizes.
      flops: that the model asks of the rank: padding, and what a scheme does twice, not counted.
    """

    start: int
    cost: Cost
    parts: dict[str, float]
    weight_bytes: int
    cache_bytes: int
    flops: float

    @property
    def ms(self) -> float:
        """Predicted milliseconds."""
        return self.cost.us / 1000


@dataclass(frozen=True)
class PromptReport:
    """A compiled chunk program and what it is predicted to take.

    Attributes:
      options: of the chunk.
      compilation: sizes and seconds.
      costs: assumptions.
      prompt_tokens: of the prompt below.
      prompt: the chunks of a prompt of so many tokens.
      band: milliseconds of the prompt under each allowed cost model.
      last: the chunk that fills the cache.
      longest: name, part, milliseconds of the prompt's first chunk, of the instructions that take
        longest.
      problems: doubts, by schedule.
    """

    options: ChunkOptions
    compilation: Compilation
    costs: CostModel
    prompt_tokens: int
    prompt: tuple[ChunkFigures, ...]
    last: ChunkFigures
    longest: tuple[tuple[str, str, float], ...]
    problems: dict[str, list[str]]
    band: dict[str, float]

    @property
    def hbm_bytes(self) -> int:
        """Held in HBM: arguments and temporaries."""
        c = self.compilation
        return c.argument_bytes + c.temp_bytes + c.output_bytes - c.alias_bytes

    @property
    def fits(self) -> bool:
        """Whether HBM holds weights, caches and temporaries."""
        return self.hbm_bytes <= TPU_V7.hbm_bytes

    @property
    def prompt_ms(self) -> float:
        """Predicted milliseconds of the prompt."""
        return sum(chunk.ms for chunk in self.prompt)


def part_of(item: Item) -> str:
    """What the report counts an instruction as."""
    if item.cost.link_bytes:
        return EXCHANGES
    names = [name for name in item.instruction.path.split("/") if name in PARTS]
    return PARTS[names[-1]] if names else REST


def chunk_figures(
    plan: Plan, draft: DraftPlan, tokens: int, start: int, items: Sequence[Item]
) -> ChunkFigures:
    """Adds up a chunk's instructions."""
    parts: dict[str, float] = {}
    total = Cost()
    for item in items:
        cost = item.cost.times(item.runs)
        part = part_of(item)
        parts[part] = parts.get(part, 0.0) + cost.us / 1000
        total += cost
    return ChunkFigures(
        start, total, dict(sorted(parts.items(), key=lambda p: -p[1])), weight_bytes(plan, draft),
        cache_bytes(plan, tokens, start), flops(plan, draft, tokens, start),
    )  # fmt: skip


def longest(items: Sequence[Item]) -> tuple[tuple[str, str, float], ...]:
    """The instructions that take longest: name, part, milliseconds."""
    ordered = sorted(items, key=lambda i: -i.cost.us * i.runs)[:_TOP]
    return tuple((i.instruction.name, part_of(i), i.cost.us * i.runs / 1000) for i in ordered)


def weight_bytes(plan: Plan, draft: DraftPlan) -> int:
    """Weights that a chunk reads on one rank: all but head and embedding, each once.

    An expert is read if any token chose it: all of them, but for chunks of few tokens.
    """
    layout, drafts = plan.layout, draft.layout
    dense = layout.first_tiles[-2] * layout.shapes["dense"][1]
    experts = len(layout.moe_layers) * layout.local_experts * layout.expert_block.rows
    vectors = layout.shapes["vectors"][0] * layout.shapes["vectors"][1]
    streams = drafts.fuse_stream.tiles + drafts.config.num_hidden_layers * drafts.layer_stream.tiles
    return ROW_BYTES * (dense + experts + vectors + streams * drafts.shapes["dense"][1])


def cache_bytes(plan: Plan, tokens: int, start: int) -> int:
    """Latents that a chunk reads and writes on one rank."""
    words = plan.cache.words * len(plan.layout.config.mla_layers)
    return 4 * words * (start + 2 * tokens)


def flops(plan: Plan, draft: DraftPlan, tokens: int, start: int) -> float:
    """Multiplications and additions of matrix products on one rank."""
    layout, c, record = plan.layout, plan.layout.config, plan.record
    total = 0.0
    for layer in range(c.num_hidden_layers):
        kind = layout.kind(layer)
        total += _products(layout.attention_streams[kind.mla], tokens)
        total += _products(layout.feed_forward_streams[kind.moe], tokens)
        if kind.mla:
            seen = tokens * (start + (tokens + 1) / 2)
            heads = layout.mesh.local(c.num_attention_heads)
            total += 2 * seen * heads * (c.latent_cache_width + c.kv_lora_rank)
        else:
            # A token against half of its chunk of the scan twice, thrice against the memory.
            width = record.width * (2 * CHUNK + 3 * record.width)
            total += 2.0 * tokens * record.heads * width
    pairs = tokens * c.num_experts_per_token * layout.local_experts / c.num_experts
    block = layout.expert_block
    total += 2 * len(layout.moe_layers) * pairs * 3 * block.latent * block.width
    drafts = draft.layout
    total += _products(drafts.fuse_stream, tokens)
    return total + drafts.config.num_hidden_layers * _products(drafts.layer_stream, tokens)


def _products(stream: Stream, tokens: int) -> float:
    return sum(2.0 * tokens * m.inputs * m.outputs for m in stream.matrices)


def prompt_fields(report: PromptReport) -> dict[str, object]:
    """The report for JSON; times carry `predicted` in their names."""
    return {
        "title": report.options.title,
        "compilation": asdict(report.compilation),
        "memory": {"HBM": {"used_bytes": report.hbm_bytes, "limit_bytes": TPU_V7.hbm_bytes}},
        "fits": report.fits,
        "costs": asdict(report.costs),
        "prompt_tokens": report.prompt_tokens,
        "predicted_prompt_ms": round(report.prompt_ms, 3),
        "predicted_prompt_band_ms": {name: round(ms, 3) for name, ms in report.band.items()},
        "chunks": [_chunk_fields(chunk) for chunk in report.prompt],
        "chunk_at_the_end_of_the_cache": _chunk_fields(report.last),
        "predicted_longest_ms": [
            {"instruction": name, "part": part, "ms": round(ms, 3)}
            for name, part, ms in report.longest
        ],
        "problems": report.problems,
    }


def _chunk_fields(chunk: ChunkFigures) -> dict[str, object]:
    return {
        "start": chunk.start,
        "predicted_ms": round(chunk.ms, 3),
        "predicted_parts_ms": {name: round(ms, 3) for name, ms in chunk.parts.items()},
        "hbm_bytes": round(chunk.cost.hbm_bytes),
        "weight_bytes": chunk.weight_bytes,
        "cache_bytes": chunk.cache_bytes,
        "exchange_bytes": round(chunk.cost.link_bytes),
        "flops": chunk.flops,
    }


def prompt_text(report: PromptReport) -> str:
    """The report as a table for a terminal."""
    c, costs, first = report.compilation, report.costs, report.prompt[0]
    held = c.families | {"temporaries": c.temp_bytes}
    lines = [report.options.title, "", "held in HBM of a core, GB"]
    lines += [f"  {name:22s} {size / 1e9:10.3f}" for name, size in held.items()]
    verdict = "fits" if report.fits else "DOES NOT FIT"
    lines += [
        f"  {'all':22s} {report.hbm_bytes / 1e9:10.3f} of {TPU_V7.hbm_bytes / 1e9:.3f}: {verdict}",
        "",
        f"compiled in  {c.compile_s:10.1f} s, lowered in {c.lower_s:.1f} s",
        "",
        f"{'a chunk on one core':24s} " + " ".join(f"{x:>10s}" for x in _HEAD),
    ]
    lines += [_chunk_line(f"  after {x.start} tokens", x) for x in (*report.prompt, report.last)]
    lines += ["", f"predicted parts, ms (after {first.start} and {report.last.start} tokens)"]
    for name in dict.fromkeys((*first.parts, *report.last.parts)):
        cells = (x.parts.get(name, 0.0) for x in (first, report.last))
        lines.append(f"  {name:22s} " + " ".join(f"{cell:10.2f}" for cell in cells))
    lines += ["", f"longest after {first.start} tokens, ms"]
    lines += [f"  {ms:10.2f}  {name} ({part})" for name, part, ms in report.longest]
    lines += [
        "",
        f"{report.prompt_tokens} tokens: predicted {report.prompt_ms:.1f} ms "
        f"({min(report.band.values()):.0f} to {max(report.band.values()):.0f} under the allowed "
        "cost models)",
        "",
        "method: every schedule simulated, one after the other, nothing beside anything else;",
        f"{first.cost.unscheduled_us / 1000:.2f} ms of a chunk have no schedule and go by bytes",
        f"assumed: {costs.clock_ghz} GHz, HBM "
        f"{costs.hbm_stream_bytes_s / 1e12:.2f} TB/s, links between chips "
        f"{costs.link_bytes_s / 1e9:.0f} GB/s, cost model {costs.name}",
    ]
    lines += [f"note: {name}: {line}" for name, found in report.problems.items() for line in found]
    return "\n".join(lines) + "\n"


_HEAD = ("pred. ms", "HBM GB", "weights", "cache", "other", "sent GB", "TFLOP", "TFLOP/s")


def _chunk_line(name: str, chunk: ChunkFigures) -> str:
    known = chunk.weight_bytes + chunk.cache_bytes
    cells = (
        chunk.ms, chunk.cost.hbm_bytes / 1e9, chunk.weight_bytes / 1e9, chunk.cache_bytes / 1e9,
        (chunk.cost.hbm_bytes - known) / 1e9, chunk.cost.link_bytes / 1e9, chunk.flops / 1e12,
        chunk.flops / 1e9 / chunk.ms,
    )  # fmt: skip
    return f"{name:24s} " + " ".join(f"{cell:10.2f}" for cell in cells)
