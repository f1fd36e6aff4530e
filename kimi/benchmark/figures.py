"""From measured steps to figures. Three of them are easily confused and never mixed here:

step time [ms]     how long one step takes, however many tokens it yields
tokens per step    how many tokens a step yields: the acceptance length, measured; 1 if plain
tokens per second  tokens per step times steps per second, 1000 / mean step time
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kimi.benchmark.measure import Pair, Run
from kimi.decoding.schedule import CostTable
from kimi.decoding.stats import Step

PERCENTILES = (50, 90, 99)
Spread = dict[str, float]
"""{"p50": ..., "p90": ..., "p99": ...}, by linear interpolation."""


@dataclass(frozen=True)
class Rates:
    """What timed steps come to; None if there were none.

    Attributes:
      steps, tokens: timed steps, and tokens emitted by them.
      step_ms: mean time of a step.
      tokens_per_step: acceptance length, measured.
      steps_per_second, tokens_per_second: the latter is the product of the two before.
    """

    steps: int
    tokens: int
    step_ms: float | None
    tokens_per_step: float | None
    steps_per_second: float | None
    tokens_per_second: float | None

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Rates":
        """Of all timed steps of the runs together."""
        steps, tokens = sum(len(r.seconds) for r in runs), sum(sum(r.tokens) for r in runs)
        seconds = sum(sum(r.seconds) for r in runs)
        if not steps:
            return cls(0, 0, None, None, None, None)
        return cls(
            steps, tokens, 1e3 * seconds / steps, tokens / steps, steps / seconds, tokens / seconds
        )


def spread(values: Sequence[float]) -> Spread | None:
    """Percentiles of values; None of no values."""
    if not len(values):
        return None
    return {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}


def acceptance_by_position(history: Sequence[Step]) -> list[dict[str, Any]]:
    """How often the drafts at each position of the block were accepted.

    Returns: for position 1, 2, ... `verified`, how often its draft was verified; `reached`, how
      often all drafts before it were accepted too; `accepted`; and the shares of accepted among
      the two.
    """
    found = []
    for position in range(1, max((s.rows for s in history), default=1)):
        verified = sum(s.rows > position for s in history)
        reached = sum(s.rows > position and s.accepted >= position - 1 for s in history)
        accepted = sum(s.accepted >= position for s in history)
        found.append({
            "position": position, "verified": verified, "reached": reached, "accepted": accepted,
            "share_of_verified": accepted / verified if verified else None,
            "share_of_reached": accepted / reached if reached else None,
        })  # fmt: skip
    return found


def shares(costs: CostTable, history: Sequence[Step], step_ms: float | None) -> dict[str, Any]:
    """What of a step is drafting and what verification, from their times measured apart.

    Returns: `draft_ms`; `verify_ms`, the mean over the rows that were verified; their shares of
      the two together; and `rest_ms`, what the step takes longer than both: sampling, the host,
      what differs from when they were timed. It may be negative where measurements scatter.
    """
    verify = float(np.mean([costs.rows[s.rows] for s in history]))
    both = costs.draft + verify
    return {
        "draft_ms": costs.draft, "verify_ms": verify,
        "draft_share": costs.draft / both, "verify_share": verify / both,
        "rest_ms": None if step_ms is None else step_ms - both,
    }  # fmt: skip


def of_run(run: Run) -> dict[str, Any]:
    """The record of one request, decoded in one way."""
    return {
        **vars(Rates.of([run])),
        "output_tokens": len(run.ids),
        "finish": run.stats.finish,
        "time_to_first_token_ms": 1e3 * run.stats.first_token_seconds,
        "times_ms": [round(1e3 * s, 4) for s in run.seconds],
        "rows": [s.rows for s in run.stats.history],
        "accepted": [s.accepted for s in run.stats.history],
    }


def of_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """The record of all requests, decoded in one way, at least one."""
    each = [Rates.of([run]) for run in runs]

    def over_requests(name: str) -> Spread | None:
        return spread([v for r in each if (v := getattr(r, name)) is not None])

    return {
        **vars(Rates.of(runs)),
        "output_tokens": sum(len(r.ids) for r in runs),
        "rows_per_step": float(np.mean([s.rows for r in runs for s in r.stats.history])),
        "step_ms_over_steps": spread([1e3 * s for r in runs for s in r.seconds]),
        "step_ms_over_requests": over_requests("step_ms"),
        "tokens_per_step_over_requests": over_requests("tokens_per_step"),
        "tokens_per_second_over_requests": over_requests("tokens_per_second"),
        "time_to_first_token_ms_over_requests": spread(
            [1e3 * r.stats.first_token_seconds for r in runs]
        ),
    }


def of_pairs(pairs: Sequence[Pair], costs: CostTable) -> dict[str, Any]:
    """The measured part of a report: both ways, their ratio, and every request."""
    plain, drafted = of_runs([p.plain for p in pairs]), of_runs([p.drafted for p in pairs])
    history = [s for p in pairs for s in p.drafted.stats.history]
    rates = plain["tokens_per_second"], drafted["tokens_per_second"]
    return {
        "plain": plain,
        "drafted": drafted | {
            "acceptance_by_position": acceptance_by_position(history),
            "shares": shares(costs, history, drafted["step_ms"]),
        },
        "speedup": rates[1] / rates[0] if None not in rates else None,
        "identical_to_plain": sum(p.plain.ids == p.drafted.ids for p in pairs),
        "costs": {
            "draft_ms": costs.draft,
            "verify": [{"rows": k, "ms": v} for k, v in costs.rows.items()],
        },
        "requests": [
            {
                "index": i, "prompt_tokens": p.prompt_tokens,
                "plain": of_run(p.plain), "drafted": of_run(p.drafted),
            }
            for i, p in enumerate(pairs)
        ],
    }  # fmt: skip
