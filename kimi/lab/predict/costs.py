"""Cost models: what the static schedule does not say, as data.

A model says what an exchange, a message, a byte over a link or of HBM, a cycle and a call cost.
Several models fit the public measurements of TPU v7 (`calibration`): predictions are reported under
the one that fits best, `JOINT`, with the range over all that are allowed. `load` reads another one,
such as that of a measured slice, from JSON.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kimi.errors import ConfigError, InputError
from kimi.fields import load_json

REPORT = "Inferact/tpu-megakernels, musespark/REPORT.md"
_LIBTPU = "libtpu's static profiler for TPU7x"


# Fields of no concern to what talks to no peer.
_NETWORK = (
    "name", "link_bytes_s", "sibling_bytes_s", "latency_us", "message_us", "floor_us", "wrap",
    "launch_us", "dispatch_us",
)  # fmt: skip


def _from(source: str, default: Any) -> Any:
    """A field with its source."""
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True)
class CostModel:
    """Assumptions of one prediction. Every field but the name has a source, see `sources`.

    Attributes:
      name: what reports and `--cost-model` call it.
      clock_ghz: TensorCore clock.
      compute_scale: time of the core's instructions over that of their schedule.
      hbm_bytes_s: peak HBM bandwidth of one core.
      hbm_efficiency: achieved share of the peak.
      hbm_latency_us: from the start of an HBM copy to its first byte.
      hbm_streams: copies that share the bandwidth at a time; more wait in the order of their start.
      local_latency_us: start-up of a copy that stays inside the core (VMEM, SMEM).
      local_bytes_s: bandwidth of such a copy.
      link_bytes_s: of a link between two chips, each way, for all that crosses it.
      sibling_bytes_s: between the two cores of a chip, each way.
      latency_us: from a message's last byte on its links to the count at its receiver.
      message_us: that a core spends on each message, one after another.
      floor_us: (peers, time) pairs with rising peers: an exchange with so many peers or more takes
        at least so long from its first message on; between two pairs by interpolation.
      wrap: sides of more than two chips are rings.
      launch_us: a kernel's start within a program.
      dispatch_us: a call of a program from the host, with the XLA operations beside its kernel.
    """

    name: str
    clock_ghz: float = _from(f"{_LIBTPU}; primatrix/sim-pjrt, fastest bundles", 1.9)
    compute_scale: float = _from(f"{REPORT}: 20 ns a 256x256 tile of weights, scheduled 18.2", 1.08)
    hbm_bytes_s: float = _from("published: 7.38 TB/s a chip", 3.69e12)
    hbm_efficiency: float = _from(f"{REPORT}: head of 400 MiB in 126 to 130 us", 0.90)
    hbm_latency_us: float = _from(f"{_LIBTPU}: 691 cycles", 0.364)
    hbm_streams: int = _from("calibration: layers and expert slots", 2)
    local_latency_us: float = _from(_LIBTPU, 0.37)
    local_bytes_s: float = _from(f"{_LIBTPU}: 1,024 bytes a cycle", 1.9456e12)
    link_bytes_s: float = _from(f"{REPORT}: 16 MiB of both cores to another chip in 367 us", 97e9)
    sibling_bytes_s: float = _from(f"{REPORT}: 16 MiB to the sibling core in 27.5 us", 660e9)
    latency_us: float = _from("calibration", 1.75)
    message_us: float = _from("calibration", 0.0)
    floor_us: tuple[tuple[int, float], ...] = _from("calibration", ())
    wrap: bool = _from("not known for 2x2x4; without is the slower one", False)
    launch_us: float = _from(f"{REPORT}: rings of 16 layers a call, over their bytes", 38.0)
    dispatch_us: float = _from(f"{REPORT}: fixed cost of a step, less its head", 70.0)

    def __post_init__(self) -> None:
        pairs = tuple((int(n), float(us)) for n, us in self.floor_us)
        object.__setattr__(self, "floor_us", pairs)
        free = ("message_us", "launch_us", "dispatch_us")
        for name, value in vars(self).items():
            if isinstance(value, float | int) and not isinstance(value, bool):
                least = name in free and value == 0
                if not (value > 0 or least):
                    raise self._error(name, "a number above 0", value)
        if self.hbm_efficiency > 1:
            raise self._error("hbm_efficiency", "at most 1", self.hbm_efficiency)
        if any(a >= b or x > y for (a, x), (b, y) in zip(pairs, pairs[1:], strict=False)):
            raise self._error("floor_us", "rising peers and times", pairs)

    def _error(self, name: str, expected: str, found: object) -> ConfigError:
        return ConfigError(f"cost model {self.name!r}: {name}: expected {expected}, found {found}")

    @property
    def cycle_us(self) -> float:
        """Microseconds of one issued cycle."""
        return self.compute_scale / (1e3 * self.clock_ghz)

    def cycles(self, us: float) -> float:
        """Issued cycles in `us` microseconds."""
        return us / self.cycle_us

    def us(self, cycles: float) -> float:
        """Microseconds in `cycles` issued cycles."""
        return cycles * self.cycle_us

    def bytes_cycle(self, bytes_s: float) -> float:
        """Bytes that a bandwidth moves in one issued cycle."""
        return bytes_s * 1e-6 * self.cycle_us

    @property
    def hbm_stream_bytes_s(self) -> float:
        """HBM bytes moved per second."""
        return self.hbm_bytes_s * self.hbm_efficiency

    @property
    def hbm_bytes_cycle(self) -> float:
        """HBM bytes moved per issued cycle."""
        return self.bytes_cycle(self.hbm_stream_bytes_s)

    def computes_as(self, other: "CostModel") -> bool:
        """Whether the two cost the same wherever a core talks to no peer."""
        return all(
            getattr(self, f.name) == getattr(other, f.name)
            for f in fields(self)
            if f.name not in _NETWORK
        )

    def floor(self, peers: int) -> float:
        """The least microseconds of an exchange with so many peers; 0 if there is no floor."""
        if not self.floor_us or peers < 1:
            return 0.0
        below = [pair for pair in self.floor_us if pair[0] <= peers]
        above = [pair for pair in self.floor_us if pair[0] > peers]
        if not below or not above:
            return (below or above)[-1 if below else 0][1]
        (a, x), (b, y) = below[-1], above[0]
        return x + (y - x) * (peers - a) / (b - a)


def sources() -> dict[str, str]:
    """Where the default of every field comes from."""
    return {f.name: f.metadata["source"] for f in fields(CostModel) if f.metadata}


_FLOORS = ((1, 1.75), (3, 2.3), (7, 3.5))
JOINT = CostModel("joint", message_us=0.02, floor_us=_FLOORS)
"""Fits copies, collectives, layers and both K3 steps together, see `calibration`."""
FLOOR = CostModel("floor", latency_us=1.5, floor_us=((1, 1.9), (3, 2.15), (7, 3.4)))
"""A message costs nothing, an exchange at least so much."""
PER_MESSAGE = CostModel("per-message", latency_us=1.6, message_us=0.15)
"""As much for a message as the K3 steps allow; the collectives alone would take 0.25 to 0.3."""
FREE = CostModel("messages-free", latency_us=2.0)
"""The lower end: right for large messages, a quarter too short for gathers of 8 KiB."""
WRAPPED = replace(JOINT, name="wrapped", wrap=True)
"""`JOINT`, if the long side of a slice is a ring."""
ALLOWED = (JOINT, FLOOR, PER_MESSAGE, FREE, WRAPPED)
MODELS = {model.name: model for model in ALLOWED}


def cost_model(name: str) -> CostModel:
    """A model by its name, or from a file.

    Raises:
      InputError: neither.
      ConfigError: the file has a field that is none, or an impossible value.
    """
    if name in MODELS:
        return MODELS[name]
    if not Path(name).is_file():
        raise InputError(
            f"cost model: expected {', '.join(MODELS)} or a file with one, found {name!r}"
        )
    return load(Path(name))


def models_from(name: str) -> tuple[CostModel, ...]:
    """A model by name or file, then all others that are allowed. Raises as `cost_model`."""
    chosen = cost_model(name)
    return chosen, *(model for model in ALLOWED if model != chosen)


def load(path: Path) -> CostModel:
    """Reads a JSON object of fields; those that are left out are the joint model's.

    Raises:
      ConfigError: a field that is none, or of an impossible value or type.
    """
    found = load_json(path)
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: expected an object with the fields of a cost model")
    known = asdict(JOINT)
    for name, value in found.items():
        if name not in known:
            raise ConfigError(f"{path}: {name}: expected one of {', '.join(known)}, found it")
        kind: tuple[type, ...] = (type(known[name]),)
        kind = (float, int) if kind == (float,) else (list,) if kind == (tuple,) else kind
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
            raise ConfigError(f"{path}: {name}: expected a {kind[0].__name__}, found {value!r}")
    try:
        return replace(JOINT, **{"name": path.stem} | dict(found))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: floor_us: expected pairs of numbers: {error}") from error
