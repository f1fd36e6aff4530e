"""The whole decode step at full size, for the compiler: shapes only, no weights."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from kimi.config import ModelConfig
from kimi.errors import InputError
from kimi.kernels import megakernel
from kimi.kernels.chip import LANES, round_up
from kimi.kernels.collectives import AXIS
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import default_mesh
from kimi.kernels.plan import Plan, default_settings
from kimi.kernels.refs import INPUTS, OUTPUTS, StepInput, state_shapes, weight_shapes
from kimi.lab.predict.compile import Buffer, Subject
from kimi.lab.predict.dump import NUMBERED, SCRATCH
from kimi.lab.predict.launch import Kernel
from kimi.lab.predict.topology import DEFAULT_TOPOLOGY, compile_mesh, device_count

_STATES = ("kda", "cache")
# What the report calls the kernel's operands.
FAMILIES = dict.fromkeys(OUTPUTS, "results") | {
    "appended": "MLA cache",
    "table": "layer table",
    "step": "step input",
    "dense": "dense",
    "vectors": "vectors",
    "experts": "experts",
    "embedding": "embedding",
    "kda": "KDA states",
    "cache": "MLA cache",
}


@dataclass(frozen=True)
class StepOptions:
    """Which step of which model, where.

    Attributes:
      rows: 1 to 8.
      block: the rows are a block of one sequence, else the newest tokens of as many sequences; one
        row of a block is what a drafted step verifies when more are not worth it.
      experts: `mxfp4` or `fp8`.
      context: tokens of each sequence before the step.
      topology: a name that the compiler knows.
      model: folder with a config.json; empty for the published model.
    """

    rows: int = 1
    block: bool = False
    experts: str = ExpertFormat.MXFP4.value
    context: int = 1152
    topology: str = DEFAULT_TOPOLOGY
    model: str = ""

    @property
    def title(self) -> str:
        """For reports."""
        many = f"a block of {self.rows} rows" if self.block else f"{self.rows} sequences"
        if self.rows == 1:
            many = "1 row of a block" if self.block else "1 row"
        model = Path(self.model).name if self.model else "Kimi K3"
        return (
            f"{model}, {many} after {self.context} tokens, {self.experts} experts, {self.topology}"
        )

    def config(self) -> ModelConfig:
        """The model's. Raises ConfigError."""
        return ModelConfig.from_dir(self.model) if self.model else ModelConfig.published()

    def plan(self) -> Plan:
        """The kernel's, with a cache that holds the context and this step's rows.

        Raises:
          ConfigError: of the model.
          InputError: of the topology, or a negative context.
          LayoutError, PlanError: the model does not fit so.
        """
        if self.context < 0:
            raise InputError(f"context: expected at least 0 tokens, found {self.context}")
        config = self.config()
        mesh = default_mesh(config, device_count(self.topology))
        layout = Layout(config, mesh, ExpertFormat(self.experts))
        slots = round_up(self.context + self.rows, LANES)
        sequences = 1 if self.block else self.rows
        rollback = self.block and self.rows == 1
        return Plan(
            layout, default_settings(layout, self.rows, slots, sequences, rollback=rollback)
        )


def decode(**options: object) -> Subject:
    """One step on all ranks; keywords are those of `StepOptions`.

    Raises:
      KimiError: see `StepOptions.plan`, and what the kernel refuses.
    """
    chosen = StepOptions(**options)  # type: ignore[arg-type]
    plan = chosen.plan()
    mesh = compile_mesh(chosen.topology, axes=(AXIS,))
    kernel = megakernel.build(plan)
    shared, split = PartitionSpec(), PartitionSpec(AXIS)

    def one_rank(step: jax.Array, *own: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(x[None] for x in kernel(step, *(a[0] for a in own)))

    arrays = weight_shapes(plan.layout) | state_shapes(plan)
    mapped = jax.shard_map(
        one_rank, mesh=mesh, in_specs=(shared, *[split] * len(arrays)), out_specs=split,
        check_vma=False,
    )  # fmt: skip
    step = jax.ShapeDtypeStruct((StepInput.SIZE,), jnp.int32, sharding=NamedSharding(mesh, shared))
    own = NamedSharding(mesh, split)
    arguments = [
        jax.ShapeDtypeStruct((mesh.size, *shape), dtype, sharding=own)
        for shape, dtype in arrays.values()
    ]
    names = ("step", *arrays)
    return Subject(
        "decode",
        jax.jit(mapped, donate_argnums=[names.index(state) for state in _STATES]),
        (step, *arguments),
        mesh,
        family=lambda path: FAMILIES[names[int(path.strip("[]"))]],
        buffers=tuple(Buffer(s.name, s.space.value, s.nbytes) for s in plan.storages),
    )


def display_names(plan: Plan, kernel: Kernel) -> dict[str, str]:
    """What the plan calls the compiled kernel's buffers, semaphores and operands.

    Raises:
      InputError: the kernel has other scratch operands than the plan.
    """
    scratch = [s.name for s in plan.storages]
    for transfer in plan.transfers:
        ends = ("sent", "received") if transfer.kind.remote else ("",)
        scratch += [f"{transfer.name} {end}".strip() for end in ends]
    # The compiler numbers them in turn, also those that it then does without.
    tagged = (a.name.removeprefix(NUMBERED) for a in kernel.allocations if a.tag == SCRATCH)
    numbers = sorted(int(number) for number in tagged)
    first, last = (numbers[0], numbers[-1]) if numbers else (0, -1)
    if last - first + 1 != len(scratch):
        raise InputError(
            f"kernel {kernel.name}: expected {len(scratch)} scratch operands, found "
            f"{last - first + 1}"
        )
    return {f"{NUMBERED}{n}": name for n, name in enumerate(scratch, first)} | _operand_names()


def _operand_names() -> dict[str, str]:
    names = {f"input {i}": name for i, name in enumerate(INPUTS)}
    return names | {f"output {i}": name for i, name in enumerate(OUTPUTS, len(INPUTS))}


def traffic_by_family(arrays: Mapping[str, int]) -> dict[str, int]:
    """The HBM traffic of the kernel's operands (`Prediction.hbm_arrays`) by family."""
    names, found = _operand_names(), Counter[str]()
    for operand, size in arrays.items():
        name = names.get(operand, operand)
        found[FAMILIES.get(name, name)] += size
    return dict(found.most_common())
