"""Predicted tokens a second of drafted decoding: the whole program of a call, on the device.

    print(end_to_end_text(end_to_end(LoopOptions())))

A step drafts eight tokens, verifies the block, writes the cache, accepts, and samples; steps follow
each other in one program (`loops`). The program is compiled greedy and sampling (temperature and
top-p are run-time values: the same code for all) and every schedule of it is simulated, see
`module_time`. A call adds what XLA does before and behind the steps, and its dispatch by the host.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kimi.config import DraftConfig, ModelConfig
from kimi.kernels.draft.kernel import step_input as draft_input
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import default_mesh
from kimi.kernels.plan import Plan, default_settings
from kimi.lab.predict.bands import Band, band_of
from kimi.lab.predict.costs import ALLOWED, CostModel
from kimi.lab.predict.feed import commit_inputs, kernel_inputs
from kimi.lab.predict.launch import Kernel, compile_target
from kimi.lab.predict.links import slice_of
from kimi.lab.predict.loops import LoopOptions
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.module import module_file, parse_module
from kimi.lab.predict.module_time import Feed, Item, ModuleTime, Turns
from kimi.lab.predict.report import paging
from kimi.lab.predict.simulate import partition_words
from kimi.lab.predict.topology import device_count

TOKENS = 1152  # before the step
ACCEPTANCE = (3.84, 4.1, 6.0)  # tokens a step; the first is the field's yardstick
# Published by Inferact/tpu-megakernels: tokens a second at a forced length of 6; else from its
# 8.46 ms for a step.
PEER_PUBLISHED, PEER_STEP_MS = {6.0: 709.0}, 8.46
PARTS = ("draft", "decode", "cache_append")  # kernels; all else is XLA's
REST = "acceptance, sampling, glue"
# Of what sampling chooses between: the second cuts the distribution by top-p and top-k.
_BRANCHES = {"cond": (0.0, 1.0)}
_LOOP = "kimi.lab.predict.loops:drafted_steps"


@dataclass(frozen=True)
class Drafted:
    """A program of drafted steps.

    Attributes:
      options: of the program.
      parts: milliseconds of a step by part.
      step_ms: of a step, its share of the call included, under each model.
      call_ms: of a call beside its steps, dispatch included, under each model.
      problems: doubts, by schedule.
      bundles: VLIW bundles of all that runs in the program.
    """

    options: LoopOptions
    parts: Mapping[str, Band]
    step_ms: tuple[float, ...]
    call_ms: tuple[float, ...]
    problems: Mapping[str, Sequence[str]]
    bundles: int

    @property
    def kind(self) -> str:
        """Greedy or sampled."""
        return "greedy" if self.options.greedy else "temperature 1, top-p"

    @property
    def step(self) -> Band:
        """Milliseconds of a step, its share of the call included."""
        return band_of(self.step_ms)

    def speed(self, length: float) -> Band:
        """Tokens a second at so many a step."""
        return band_of([1e3 * length / ms for ms in self.step_ms])


def peer_speed(length: float) -> tuple[float, str]:
    """The peer's tokens a second, and whether they are published or computed from its step."""
    if length in PEER_PUBLISHED:
        return PEER_PUBLISHED[length], "published"
    return 1e3 * length / PEER_STEP_MS, f"of its {PEER_STEP_MS} ms"


def end_to_end(
    options: LoopOptions, models: Sequence[CostModel] = ALLOWED
) -> tuple[Drafted, Drafted]:
    """Compiles and times the greedy and the sampling program; minutes.

    Raises:
      KimiError: the sizes do not fit; `Refused` if the compiler does not take a program.
    """
    greedy, sampled = (replace(options, greedy=g, singles=False) for g in (True, False))
    return drafted(greedy, models), drafted(sampled, models)


def drafted(options: LoopOptions, models: Sequence[CostModel] = ALLOWED) -> Drafted:
    """Compiles and times one program. Raises as `end_to_end`."""
    with tempfile.TemporaryDirectory(prefix="kimi-predict-") as folder:
        compile_target(_LOOP, asdict(options), dump=Path(folder))
        return _timed(options, models, Path(folder))


def _timed(options: LoopOptions, models: Sequence[CostModel], folder: Path) -> Drafted:
    module = parse_module(module_file(folder).read_text())
    where = slice_of(options.topology)
    base = ModuleTime(
        module, folder, device_count(options.topology), _feeds(options), models[0], where
    )
    steps, calls, parts = [], [], []
    for costs in models:
        times = base if costs == models[0] else base.under(costs)
        around, inside = (times.items(Turns(runs, _BRANCHES)) for runs in (0, 1))
        outside = _by_part(around)
        parts.append({name: ms - outside[name] for name, ms in _by_part(inside).items()})
        calls.append(sum(outside.values()) + costs.dispatch_us / 1e3)
        steps.append(sum(parts[-1].values()) + calls[-1] / options.steps)
    bands = {name: band_of([found[name] for found in parts]) for name in parts[0]}
    bundles = sum(base.bundles.values())
    return Drafted(options, bands, tuple(steps), tuple(calls), base.problems, bundles)


def _by_part(items: Iterable[Item]) -> dict[str, float]:
    found = dict.fromkeys((*PARTS, REST), 0.0)
    for item in items:
        name = item.instruction.name.split(".")[0]
        found[name if name in PARTS else REST] += item.cost.us * item.runs / 1e3
    return found


def _feeds(options: LoopOptions) -> dict[str, Feed]:
    """What the kernels of the program find in scalar memory."""
    config, drafter = ModelConfig.published(), DraftConfig.published()
    mesh = default_mesh(config, device_count(options.topology))
    layout = Layout(config, mesh, ExpertFormat(options.experts))
    taps = drafter.aux_hidden_state_layer_ids
    plan = Plan(layout, default_settings(layout, drafter.block_size, options.context, taps=taps))

    def draft(kernel: Kernel) -> KernelInputs:
        return KernelInputs(
            operands={0: draft_input(0, TOKENS - 4, 4).tolist()},
            words=partition_words(kernel.allocations, 0),
        )

    return {
        "decode": lambda kernel: kernel_inputs(plan, kernel, TOKENS),
        "cache_append": commit_inputs(plan, TOKENS),
        "draft": draft,
    }


def end_to_end_fields(programs: Sequence[Drafted]) -> list[dict[str, Any]]:
    """For JSON; times and speeds carry `predicted` in their names."""
    return [
        {
            "decoding": p.kind,
            "predicted_step_ms": p.step.fields(),
            "predicted_parts_ms": {name: ms.fields() for name, ms in p.parts.items()},
            "predicted_call_ms": band_of(p.call_ms).fields(),
            "speeds": [
                {
                    "tokens_per_step": length,
                    "predicted_tokens_per_second": p.speed(length).fields(1),
                    "peer_tokens_per_second": round(peer_speed(length)[0], 1),
                    "peer_source": peer_speed(length)[1],
                }
                for length in ACCEPTANCE
            ],
            "bundles": p.bundles,
            "problems": dict(p.problems),
        }
        for p in programs
    ]


def end_to_end_text(programs: Sequence[Drafted]) -> str:
    """As tables."""
    first = programs[0].options
    lines = [
        f"Kimi K3, drafted blocks of 8 rows after {TOKENS} tokens, {first.experts} experts, "
        f"{first.topology}, {first.steps} steps a call; predicted, best cost model and range over "
        "the allowed ones",
        "",
        f"{'ms of a step':28s} {'whole, and of call':>20s} "
        + " ".join(f"{name:>20s}" for name in PARTS) + f"  {REST}",
    ]  # fmt: skip
    for p in programs:
        cells = " ".join(f"{p.parts[name].text():>20s}" for name in PARTS)
        lines.append(f"{p.kind:28s} {p.step.text():>20s} {cells}  {p.parts[REST].text()}")
    lines += [
        "",
        f"{'tokens a second':28s} " + " ".join(f"{f'at {n:g} a step':>22s}" for n in ACCEPTANCE),
    ]
    for p in programs:
        cells = " ".join(f"{p.speed(length).text(0):>22s}" for length in ACCEPTANCE)
        lines.append(f"{p.kind:28s} {cells}")
    known = (peer_speed(length) for length in ACCEPTANCE)
    cells = " ".join(f"{f'{speed:.0f} {how}':>22s}" for speed, how in known)
    lines.append(f"{'the peer, measured':28s} {cells}")
    for p in programs:
        lines += [f"note: {name}: {line}" for name, found in p.problems.items() for line in found]
        lines += [f"warning: {p.kind}: {line}" for line in paging(p.bundles)]
    return "\n".join(lines) + "\n"
