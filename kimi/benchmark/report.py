"""The report of a benchmark as a person reads it, and as JSON."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kimi.assets import TINY_K3
from kimi.benchmark.figures import PERCENTILES

Report = dict[str, Any]
SYNTHETIC = "[synthetic] "
"""Begins every line about a run whose acceptance length was forced."""
_WIDTH = 58
_MAPS = ("versions",)  # from names to values: no records


def mark(value: Any) -> Any:
    """The same report with `"synthetic": true` in each of its records."""
    if isinstance(value, dict):
        marked = {key: v if key in _MAPS else mark(v) for key, v in value.items()}
        return {"synthetic": True} | marked
    return [mark(v) for v in value] if isinstance(value, list) else value


def lines(report: Report) -> list[str]:
    """The table."""
    found = [*_head(report), "", *_steps(report), "", *_requests(report), "", *_tail(report)]
    synthetic = report["options"]["forced_acceptance"] is not None
    return [(SYNTHETIC if synthetic else "") + line for line in found]


def _head(report: Report) -> list[str]:
    s, o, m = report["system"], report["options"], report["model"]
    versions = ", ".join(f"{k} {v}" for k, v in s["versions"].items() if v)
    verify = f"adaptive, up to {m['block_size']}" if o["verify"] == "adaptive" else f"{o['rows']}"
    found = [
        f"model        {m['path']} ({m['layers']} layers), {o['backend']} backend",
        f"hardware     {s['devices']} x {s['device_kind']} ({s['platform']}), hosts: {s['hosts']}, "
        f"{s['cpu_count']} CPUs a host ({s['cpu']}), load average {s['load_average']}",
        f"versions     {versions}; commit {s['commit'] or 'unknown'}",
        f"requests     {len(report['requests'])} of {o['requests']}: {o['prompts']}; at most "
        f"{o['max_tokens']} new tokens, context {o['context']}",
        f"drafted      rows verified: {verify}; steps per call: {o['steps_per_call']}; greedy",
    ]  # fmt: skip
    if o["forced_acceptance"] is not None:
        found.append(
            f"acceptance   FORCED to {o['forced_acceptance']} tokens per step: the drafted figures "
            "are not the model's"
        )
    if report["partial"]:
        found.append("PARTIAL      interrupted: only the requests that had ended are counted")
    return found


def _row(name: str, plain: float | None, drafted: float | None, digits: int = 2) -> str:
    def cell(value: float | None) -> str:
        return f"{'-' if value is None else f'{value:.{digits}f}':>12}"

    return f"{name:<{_WIDTH}}{cell(plain)}{cell(drafted)}"


def _get(record: Any, *names: str) -> Any:
    for name in names:
        record = None if record is None else record[name]
    return record


def _both(report: Report) -> Callable[..., str]:
    def row(name: str, *names: str) -> str:
        return _row(name, _get(report["plain"], *names), _get(report["drafted"], *names))

    return row


def _steps(report: Report) -> list[str]:
    row = _both(report)
    call = report["options"]["steps_per_call"] > 1
    how = " (of a call, divided by its steps)" if call else ""
    return [
        f"{'':<{_WIDTH}}{'plain':>12}{'drafted':>12}",
        row(f"step time, ms: mean{how}", "step_ms"),
        *(
            row(f"step time, ms: p{p} over steps", "step_ms_over_steps", f"p{p}")
            for p in PERCENTILES
        ),
        row("steps per second (1000 / mean step time)", "steps_per_second"),
        row("tokens per step (acceptance length, measured)", "tokens_per_step"),
        row("tokens per second (tokens per step x steps per second)", "tokens_per_second"),
        row("rows verified per step", "rows_per_step"),
    ]


def _requests(report: Report) -> list[str]:
    row = _both(report)
    named = [
        ("time to first token, ms", "time_to_first_token_ms_over_requests"),
        ("mean step time, ms", "step_ms_over_requests"),
        ("tokens per step", "tokens_per_step_over_requests"),
        ("tokens per second", "tokens_per_second_over_requests"),
    ]
    return [
        row(f"{text}: p{p} over requests", name, f"p{p}") for text, name in named
        for p in PERCENTILES
    ]  # fmt: skip


def _rest(ms: float) -> str:
    if ms >= 0:
        return f"; a step takes {ms:.2f} ms more than the two (sampling, the host)"
    return f"; the two come to {-ms:.2f} ms more than a step takes: timed apart they are slower"


def model_name(report: Report) -> str:
    """The model as a title names it."""
    path = Path(report["model"]["path"])
    return "small K3" if path == TINY_K3 else path.name


def _tail(report: Report) -> list[str]:
    found, s = [], report["drafted"]["shares"]
    found.append(
        f"of a drafted step, timed apart: draft {s['draft_ms']:.2f} ms ({s['draft_share']:.0%}), "
        f"verify {s['verify_ms']:.2f} ms ({s['verify_share']:.0%})"
        + ("" if s["rest_ms"] is None else _rest(s["rest_ms"]))
    )
    positions = report["drafted"]["acceptance_by_position"]
    if positions:
        by = "  ".join(
            f"{p['position']}: {p['share_of_verified']:.0%}" for p in positions if p["verified"]
        )
        found.append(f"drafts accepted, of those verified at each position: {by}")
    if report["speedup"] is not None:
        found.append(f"drafted against plain: {report['speedup']:.2f} x tokens per second")
    if report["options"]["forced_acceptance"] is None:
        found.append(
            f"outputs identical to plain decoding: {report['identical_to_plain']} of "
            f"{len(report['requests'])}"
        )
    return found
