"""Compiles a chunk of a prompt and predicts its time.

report = predict_prompt(ChunkOptions(experts="fp8"))
print(prompt_text(report))
"""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.plan import Plan
from kimi.lab.predict.costs import ALLOWED, CostModel
from kimi.lab.predict.launch import Built, compile_target
from kimi.lab.predict.links import slice_of
from kimi.lab.predict.module import module_file, parse_module
from kimi.lab.predict.module_time import ModuleTime, Turns
from kimi.lab.predict.prompt_report import PromptReport, chunk_figures, longest
from kimi.lab.predict.prompts import ChunkOptions, expert_inputs
from kimi.prefill.mla import tile_positions
from kimi.prefill.program import ATTENTION, FEED_FORWARD

PROMPT_TOKENS = 8192
_CHUNK = "kimi.lab.predict.prompts:chunk"


def predict_prompt(options: ChunkOptions, models: Sequence[CostModel] = ALLOWED) -> PromptReport:
    """Compiles and times a chunk, and a prompt of `PROMPT_TOKENS`, or as many as the cache holds.

    Args:
      models: cost models, that of the central figures first.
    Raises:
      KimiError: the options do not fit the model, see `ChunkOptions.plans`; `Refused` if the
        compiler does not take the program.
    """
    plans = options.plans()
    with tempfile.TemporaryDirectory(prefix="kimi-predict-") as folder:
        built = compile_target(_CHUNK, asdict(options), dump=Path(folder))
        return prompt_report(options, plans, built, Path(folder), models)


def prompt_report(
    options: ChunkOptions, plans: tuple[Plan, DraftPlan], built: Built, folder: Path,
    models: Sequence[CostModel] = ALLOWED,
) -> PromptReport:  # fmt: skip
    """The report of a compiled chunk.

    Args:
      folder: with its dumped schedules.
      models: see `predict_prompt`.
    """
    plan, draft = plans
    tokens, last = options.tokens, options.context - options.tokens
    starts = range(0, min(PROMPT_TOKENS, options.context) - tokens + 1, tokens)
    times = ModuleTime(
        parse_module(module_file(folder).read_text()),
        folder,
        plan.layout.mesh.ranks,
        {"prefill_experts": expert_inputs(plan, tokens)},
        models[0],
        slice_of(options.topology),
    )
    items = {start: times.items(_turns(plan, start)) for start in (*starts, last)}
    figures = {s: chunk_figures(plan, draft, tokens, s, found) for s, found in items.items()}
    return PromptReport(
        options, built.compilation, times.costs, len(starts) * tokens,
        tuple(figures[s] for s in starts), figures[last], longest(items[0]), times.problems,
        {costs.name: _prompt_ms(times.under(costs), plan, starts) for costs in models},
    )  # fmt: skip


def _prompt_ms(times: ModuleTime, plan: Plan, starts: Iterable[int]) -> float:
    items = (item for start in starts for item in times.items(_turns(plan, start)))
    return sum(item.cost.us * item.runs for item in items) / 1000


def _turns(plan: Plan, start: int) -> Turns:
    """Of a chunk behind `start` tokens: tiles of the cache, and layers by kind of attention."""
    c = plan.layout.config
    mla = len(c.mla_layers) / c.num_hidden_layers
    moe = len(plan.layout.moe_layers) / c.num_hidden_layers
    shares = {ATTENTION: (1 - mla, mla), FEED_FORWARD: (1 - moe, moe)}
    return Turns(-(-start // tile_positions(plan)), shares)
