"""Acceptance per position, and tokens per second against acceptance length."""

import importlib.util
from pathlib import Path

from kimi.benchmark.report import SYNTHETIC, Report
from kimi.errors import InputError
from kimi.files import writing

FORMATS = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Raises InputError if a plot of this name cannot be made."""
    if path.suffix not in FORMATS:
        raise InputError(f"--plot: expected a name ending in {' or '.join(FORMATS)}, found {path}")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot: expected matplotlib (install the extra 'eval')")


def save_plot(report: Report, path: Path) -> None:
    """Draws a report; a point is a request."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    synthetic = report["options"]["forced_acceptance"] is not None
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    positions = report["drafted"]["acceptance_by_position"]
    for key, text in [
        ("share_of_verified", "with all before it"),
        ("share_of_reached", "once all before it were"),
    ]:
        shown = [p for p in positions if p[key] is not None]
        left.plot([p["position"] for p in shown], [p[key] for p in shown], "o-", label=text)
    left.set(xlabel="position in the drafted block", ylabel="accepted drafts", ylim=(0, 1.05))
    left.set_title("acceptance per position")
    if positions:
        left.legend()
    for way in ("plain", "drafted"):
        runs = [r[way] for r in report["requests"] if r[way]["steps"]]
        lengths = [r["tokens_per_step"] for r in runs]
        right.scatter(lengths, [r["tokens_per_second"] for r in runs], label=way)
    right.set(xlabel="acceptance length (tokens per step, measured)", ylabel="tokens per second")
    right.set_title("requests")
    right.set_ylim(bottom=0)
    right.legend()
    system = report["system"]
    title = f"{system['devices']} x {system['device_kind']}, {report['options']['backend']} backend"
    partial = " (partial)" if report["partial"] else ""
    figure.suptitle((SYNTHETIC if synthetic else "") + title + partial)
    with writing(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=120)
    plt.close(figure)
