"""What was measured in public on TPU v7, beside what cost models predict for own replicas of it.

    print(calibration_text(calibrate(read_traces())))

Replicas are compiled once (`record`) and kept as traces, which any cost model times in seconds.
Facts: Inferact/tpu-megakernels, `musespark/REPORT.md` and `musespark/README.md` (commits 4d931ae,
3687626) on a 2x2x1 slice, jitted loops and wall clock; the two K3 figures: that repository's README
on 2x2x4; the stream: a probe of 3,198 GB/s a core beside DeepSeek-V4.1 on 2x2x4. Nothing of this
project has been measured.
"""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from kimi.config import ModelConfig
from kimi.lab.predict.costs import ALLOWED, CostModel
from kimi.lab.predict.launch import Built, Kernel, Target, compile_targets
from kimi.lab.predict.links import slice_of
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.peer import RANKS
from kimi.lab.predict.replicas import TOPOLOGY
from kimi.lab.predict.simulate import partition_words
from kimi.lab.predict.skeleton import skeleton_inputs
from kimi.lab.predict.topology import DEFAULT_TOPOLOGY
from kimi.lab.predict.trace import Trace, trace_of

FILE = Path(__file__).with_name("calibration.json.gz")
COLLECTIVES, LAYERS, K3 = "collectives", "layers", "K3"
GATED = (COLLECTIVES, LAYERS, K3)
TOLERANCE = 0.10
_CONTEXT = 1152
_SMALL, _STEP = "kimi.lab.predict.replicas:", "kimi.lab.predict.replica_step:"
_SKELETON = "kimi.lab.predict.skeleton:skeleton"
Traces = Mapping[str, Trace]


@dataclass(frozen=True)
class Replica:
    """A program and how often it turns when it is recorded.

    Attributes:
      builder, options: see `launch.Target`.
      turns: of each recording.
    """

    builder: str
    options: Mapping[str, Any]
    turns: tuple[int, ...]

    @property
    def inputs(self) -> Callable[[Kernel, int], KernelInputs]:
        """What a recording is fed."""
        if self.builder == _SKELETON:
            return skeleton_inputs
        return lambda kernel, turns: KernelInputs(
            operands={0: [turns]}, words=partition_words(kernel.allocations, 0)
        )

    @property
    def topology(self) -> str:
        """The slice that it is compiled for."""
        return DEFAULT_TOPOLOGY if self.builder == _SKELETON else TOPOLOGY


def _turned(builder: str, **options: Any) -> Replica:
    return Replica(_SMALL + builder, options, (2, 10))


def _ring(**options: Any) -> Replica:
    return Replica(_STEP + "ring", options, (0, 16))


def _step(*turns: int, **options: Any) -> Replica:
    return Replica(_STEP + "step", options, turns)


REPLICAS: dict[str, Replica] = {
    "ring bf16": _ring(int8=False),
    "ring int8": _ring(int8=True),
    "ring int8, copies": _ring(int8=True, compute=False),
    "top 8": _turned("routing"),
    "gate and up": Replica(_STEP + "slices", {}, (2, 10)),
    "step bf16": _step(0, 8, 62, int8=False),
    "step int8": _step(0, 62, int8=True),
    **{f"{n} slots": _step(8, int8=False, slots=n) for n in (3, 5, 6, 8)},
    "sibling 256 KiB": _turned("copy", nbytes=2**18, offsets=[1]),
    "sibling 16 MiB": _turned("copy", nbytes=2**24, offsets=[1]),
    "chip 256 KiB": _turned("copy", nbytes=2**18, offsets=[2]),
    "chip 16 MiB": _turned("copy", nbytes=2**24, offsets=[2]),
    "three chips": _turned("copy", nbytes=2**22, offsets=[2, 4, 6]),
    **{
        f"{name} {wire} [{rows}, {width}]": _turned(
            builder, rows=rows, width=width, halves=wire == "bf16"
        )
        for name, builder in (("AR", "all_reduce"), ("paired AR", "paired_reduce"))
        for rows, width in ((8, 8192), (64, 4096))
        for wire in ("f32", "bf16")
    },
    **{
        f"{name} bf16 [{rows}, {width}]": _turned(builder, rows=rows, width=width)
        for name, builder in (("AG", "all_gather"), ("paired AG", "paired_gather"))
        for rows, width in ((8, 512), (8, 1024), (16, 1024))
    },
    "K3, 1 row": Replica(_SKELETON, {"rows": 1, "context": _CONTEXT}, (1,)),
    "K3, 8 rows": Replica(_SKELETON, {"rows": 8, "context": _CONTEXT}, (8,)),
}


@dataclass(frozen=True)
class Fact:
    """A public measurement.

    Attributes:
      name: of the table.
      kind: one of `GATED`, or "copies", "memory", "compute", "expert slots".
      measured: microseconds, from and to.
      predicted: the same of a replica, under a cost model.
      exception: why it is more than `TOLERANCE` off under the best model; empty if it is not.
    """

    name: str
    kind: str
    measured: tuple[float, float]
    predicted: Callable[[Traces, CostModel], float] = field(repr=False)
    exception: str = ""

    @property
    def central(self) -> float:
        """The middle of what was measured."""
        return sqrt(self.measured[0] * self.measured[1])


def _a_turn(name: str, few: int, many: int) -> Callable[[Traces, CostModel], float]:
    """Of a turn: the difference of two runs."""

    def predicted(traces: Traces, costs: CostModel) -> float:
        less, more = (traces[f"{name} x{turns}"].us(costs) for turns in (few, many))
        return (more - less) / (many - few)

    return predicted


def _launched(name: str, turns: int) -> Callable[[Traces, CostModel], float]:
    """Of a turn, with a share of the launch."""
    turn = _a_turn(name, 0, turns)
    return lambda traces, costs: turn(traces, costs) + costs.launch_us / turns


def _head(int8: bool) -> Callable[[Traces, CostModel], float]:
    """Of a head: a step without layers, less a ring that starts and drains."""
    kind = "int8" if int8 else "bf16"
    names = f"step {kind} x0", f"ring {kind} x0"

    def predicted(traces: Traces, costs: CostModel) -> float:
        whole, empty = (traces[name].us(costs) for name in names)
        return whole - empty

    return predicted


def _called(name: str, beside: Callable[[CostModel], float] = lambda costs: 0.0) -> Callable[
    [Traces, CostModel], float
]:  # fmt: skip
    """Of a call from the host, with what the replica leaves out."""
    return lambda traces, costs: traces[name].us(costs) + costs.dispatch_us + beside(costs)


def outside_skeleton(costs: CostModel) -> float:
    """Head and first layer of the peer, in microseconds: their bytes."""
    c = ModelConfig.published()
    heads = c.num_attention_heads * c.kda.head_dim
    numbers = c.hidden_size * (c.vocab_size + 3 * c.intermediate_size + 5 * heads)
    return 1e6 * 2 * numbers / RANKS / costs.hbm_stream_bytes_s


# Of the published drafter, dense in bfloat16: the bytes of all but embedding and head.
_DRAFT_BYTES = 7.06e9


def _drafted(costs: CostModel) -> float:
    """As `outside_skeleton`, and a draft three times as long as its bytes, as this project's is."""
    draft = 1e6 * _DRAFT_BYTES / RANKS / costs.hbm_stream_bytes_s
    return outside_skeleton(costs) + 3 * draft


_TABLE: dict[str, tuple[str, float | tuple[float, float]]] = {
    "top 8": ("compute", 0.7),
    "gate and up": ("compute", (0.87, 1.0)),
    "sibling 256 KiB": ("copies", 2.6),
    "sibling 16 MiB": ("copies", 27.5),
    "chip 256 KiB": ("copies", 7.8),
    "chip 16 MiB": ("copies", 367),
    "three chips": ("copies", 2 * 3 * 2**22 / 134e3),  # 134 GB/s of a chip
    "AR f32 [8, 8192]": (COLLECTIVES, 9.41),
    "AR bf16 [8, 8192]": (COLLECTIVES, 7.28),
    "AR f32 [64, 4096]": (COLLECTIVES, 25.44),
    "AR bf16 [64, 4096]": (COLLECTIVES, 14.45),
    "paired AR f32 [8, 8192]": (COLLECTIVES, 10.3),
    "paired AR bf16 [8, 8192]": (COLLECTIVES, 9.27),
    "paired AR f32 [64, 4096]": (COLLECTIVES, 19.89),
    "paired AR bf16 [64, 4096]": (COLLECTIVES, 13.51),
    "AG bf16 [8, 512]": (COLLECTIVES, 3.67),
    "AG bf16 [8, 1024]": (COLLECTIVES, 3.87),
    "AG bf16 [16, 1024]": (COLLECTIVES, 4.94),
    "paired AG bf16 [8, 512]": (COLLECTIVES, 4.54),
    "paired AG bf16 [8, 1024]": (COLLECTIVES, 4.7),
    "paired AG bf16 [16, 1024]": (COLLECTIVES, 5.5),
}
_SWEEP = "swept with an earlier kernel, 3 us a layer slower, with int4 experts"
EXCEPTIONS = {
    "gate and up": "the replica's product takes fewer instructions than the published one",
    "sibling 256 KiB": "a lone copy starts 0.4 us later than any that is part of an exchange",
    "step of 8 layers, 3 expert slots": _SWEEP,
    "step of 8 layers, 5 expert slots": _SWEEP,
    "step of 8 layers, 6 expert slots": _SWEEP,
    "step of 8 layers, 8 expert slots": f"{_SWEEP}; more copies in flight cost nothing here",
}


def _pair(measured: float | tuple[float, float]) -> tuple[float, float]:
    return measured if isinstance(measured, tuple) else (measured, measured)


def _facts() -> tuple[Fact, ...]:
    def fact(
        name: str, kind: str, measured: float | tuple[float, float],
        predicted: Callable[[Traces, CostModel], float],
    ) -> Fact:  # fmt: skip
        return Fact(name, kind, _pair(measured), predicted, EXCEPTIONS.get(name, ""))

    slots = {3: 668, 4: 653, 5: 685, 6: 690, 8: 824}
    return (
        fact("a stream of 1 GB", "memory", 1e6 / 3198, lambda t, c: 1e15 / c.hbm_stream_bytes_s),
        fact("ring bf16, a layer", "memory", 26.4, _launched("ring bf16", 16)),
        fact("ring int8, a layer", "memory", 17.5, _launched("ring int8", 16)),
        fact("its copies alone", "memory", 16.1, _launched("ring int8, copies", 16)),
        fact("head, 400 MiB bf16", "memory", (126, 130), _head(int8=False)),
        fact("head, 200 MiB int8", "memory", 68, _head(int8=True)),
        *(fact(name, kind, us, _a_turn(name, 2, 10)) for name, (kind, us) in _TABLE.items()),
        fact("a layer of 62, bf16", LAYERS, 54.4, _a_turn("step bf16", 0, 62)),
        fact("a layer of 62, int8", LAYERS, 50.4, _a_turn("step int8", 0, 62)),
        fact("step of 62 layers, bf16", LAYERS, 3565, _called("step bf16 x62")),
        fact("step of 62 layers, int8", LAYERS, 3260, _called("step int8 x62")),
        *(
            fact(f"step of 8 layers, {n} expert slots", "expert slots", us,
                 _called("step bf16 x8" if n == 4 else f"{n} slots x8"))
            for n, us in slots.items()
        ),
        fact("K3, 1 row", K3, 4020, _called("K3, 1 row x1", outside_skeleton)),
        fact("K3, 8 rows and draft", K3, (8460, 8570), _called("K3, 8 rows x8", _drafted)),
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line of the table: a fact, and its prediction under each model, the best one first."""

    fact: Fact
    predicted: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Predicted over measured, under the best model; 1 within what was measured."""
        low, high = self.fact.measured
        first = self.predicted[0]
        return first / min(max(first, low), high)

    @property
    def within(self) -> bool:
        """Whether the best model is right to `TOLERANCE`."""
        return abs(self.ratio - 1) <= TOLERANCE


def calibrate(traces: Traces, models: Sequence[CostModel] = ALLOWED) -> list[Row]:
    """The table, under some models."""
    return [Row(f, tuple(f.predicted(traces, m) for m in models)) for f in _facts()]


def calibration_fields(rows: Sequence[Row], models: Sequence[CostModel]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "fact": row.fact.name,
            "kind": row.fact.kind,
            "measured_us": list(row.fact.measured),
            "predicted_us": {
                m.name: round(us, 3) for m, us in zip(models, row.predicted, strict=True)
            },
            "ratio": round(row.ratio, 4),
            "exception": row.fact.exception,
        }
        for row in rows
    ]  # fmt: skip


def calibration_text(rows: Sequence[Row], models: Sequence[CostModel]) -> str:
    """As a table."""
    first, *others = models
    head = f"{'us':36s} {'measured':>14s} {first.name:>10s} {'ratio':>6s}"
    lines = [head + "".join(f" {m.name:>12s}" for m in others)]
    kind, notes = "", []
    for row in rows:
        if row.fact.kind != kind:
            kind = row.fact.kind
            lines.append(kind)
        low, high = row.fact.measured
        measured = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        mark = "*" if row.fact.exception else " "
        lines.append(
            f"  {row.fact.name:34s} {measured[:14]:>14s} {row.predicted[0]:10.2f} "
            f"{row.ratio:5.2f}{mark}" + "".join(f" {us:12.2f}" for us in row.predicted[1:])
        )  # fmt: skip
        if row.fact.exception:
            notes.append(f"* {row.fact.name}: {row.fact.exception}")
    return "\n".join([*lines, *notes]) + "\n"


def record(replicas: Mapping[str, Replica] = REPLICAS) -> dict[str, Trace]:
    """Compiles replicas and records them; minutes for all.

    Raises:
      KimiError: the compiler does not take one of them.
    """
    found = {}
    targets = [Target(r.builder, r.options) for r in replicas.values()]
    for (name, replica), built in zip(replicas.items(), compile_targets(targets), strict=True):
        if not isinstance(built, Built):
            raise built
        kernel = built.kernel()
        where = slice_of(replica.topology)
        for turns in replica.turns:
            inputs = replica.inputs(kernel, turns)
            found[f"{name} x{turns}"] = trace_of(kernel.program, inputs, where)
    return found


def write_traces(traces: Traces, file: Path = FILE) -> None:
    """Keeps them; the same traces give the same bytes."""
    text = json.dumps({name: t.fields() for name, t in traces.items()}, separators=(",", ":"))
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_traces(file: Path = FILE) -> dict[str, Trace]:
    """Reads what `write_traces` wrote."""
    found = json.loads(gzip.decompress(file.read_bytes()))
    return {name: Trace.of(fields) for name, fields in found.items()}
