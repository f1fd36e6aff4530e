"""Acceptance per position, and tokens per second against acceptance length."""

import importlib.util
from pathlib import Path
from typing import Any

from kimi.benchmark.report import SYNTHETIC, Report, model_name
from kimi.errors import InputError, missing
from kimi.files import writing

FORMATS = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Raises InputError if a plot of this name cannot be made."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--plot: expected a name ending in {' or '.join(FORMATS)}, found {path}")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(f"--plot: {missing('matplotlib', 'eval')}")


def save_plot(report: Report, path: Path) -> None:
    """Draws a report; a point is a request."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    _draw_acceptance(left, report["drafted"]["acceptance_by_position"])
    _draw_requests(right, report)
    figure.suptitle("\n".join(_titles(report)))
    with writing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=120)
    plt.close(figure)


def _titles(report: Report) -> list[str]:
    system, options, speedup = report["system"], report["options"], report["speedup"]
    what = f"{model_name(report)}: {len(report['requests'])} requests"
    if speedup is not None:
        what += f", drafted decoding at {speedup:.2f} x the speed of plain decoding"
    where = f"{system['devices']} x {system['device_kind']}, {options['backend']} backend"
    synthetic = SYNTHETIC if options["forced_acceptance"] is not None else ""
    return [synthetic + what + (" (partial)" if report["partial"] else ""), where]


def _draw_acceptance(axes: Any, positions: list[dict[str, Any]]) -> None:
    for key, text in [
        ("share_of_reached", "of those behind accepted drafts only"),
        ("share_of_verified", "of all that were verified"),
    ]:
        shown = [p for p in positions if p[key] is not None]
        axes.plot([p["position"] for p in shown], [p[key] for p in shown], "o-", label=text)
    axes.set(xlabel="position in the drafted block", ylabel="share of drafts", ylim=(0, 1.05))
    axes.set_title("drafts that were accepted")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if positions:
        axes.legend(loc="lower left")


def _draw_requests(axes: Any, report: Report) -> None:
    for way, marker, text in [
        ("plain", "s", "plain: one token a step"),
        ("drafted", "o", "drafted: several tokens a step"),
    ]:
        runs = [r[way] for r in report["requests"] if r[way]["steps"]]
        rate = report[way]["tokens_per_second"]
        mean = "" if rate is None else f" ({rate:.1f} tokens/s over all)"
        axes.scatter(
            [r["tokens_per_step"] for r in runs], [r["tokens_per_second"] for r in runs],
            marker=marker, label=text + mean,
        )  # fmt: skip
    axes.set(xlabel="tokens per step (acceptance length), measured", ylabel="tokens per second")
    axes.set_title("speed, a point a request")
    _, high = axes.get_ylim()
    axes.set_xlim(left=0)
    axes.set_ylim(0, high * 1.25)  # room for the legend
    axes.legend(loc="upper left")
