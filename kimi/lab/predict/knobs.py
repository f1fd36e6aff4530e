"""What the static schedule does not say: clock, memory and interconnect speeds.

The calibrated set is the one under which a streaming skeleton of a published decoder, compiled for
`tpu7x:2x2x4`, takes the time its authors measured (4.02 ms at one row; about 8.46 ms at eight, for
a whole step, draft included). Other sets fit that calibration as well, so every prediction is
reported under several of them. The network of all these sets is contradicted by later public
measurements, see `NETWORK_CAVEAT`.
"""

from dataclasses import dataclass

from kimi.errors import ConfigError


@dataclass(frozen=True)
class Knobs:
    """Assumptions of one prediction.

    Attributes:
      name: what the report calls the set.
      clock_ghz: TensorCore clock; libtpu's own constants say 1.9, jax's `TpuInfo` implies 2.2.
      hbm_bytes_s: peak HBM bandwidth of one core.
      hbm_efficiency: achieved share of the peak.
      remote_latency_us: from the last byte sent to the peer's semaphore having counted it.
      ici_bytes_s: bytes a core sends per second over the interconnect.
      hbm_latency_us: from the start of an HBM copy to its first byte; 691 cycles at 1.9 GHz.
      local_latency_us: start-up of a copy that stays inside the core (VMEM, SMEM).
      local_bytes_cycle: bytes per cycle of such a copy.
    """

    name: str
    clock_ghz: float = 1.9
    hbm_bytes_s: float = 3.69e12
    hbm_efficiency: float = 0.87
    remote_latency_us: float = 1.4
    ici_bytes_s: float = 1e11
    hbm_latency_us: float = 0.364
    local_latency_us: float = 0.37
    local_bytes_cycle: float = 1024.0

    def __post_init__(self) -> None:
        for field, value in vars(self).items():
            if field != "name" and not value > 0:
                raise ConfigError(f"knob {field} of {self.name!r}: expected above 0, found {value}")
        if self.hbm_efficiency > 1:
            raise ConfigError(
                f"knob hbm_efficiency of {self.name!r}: expected at most 1, "
                f"found {self.hbm_efficiency}"
            )

    @property
    def hbm_bytes_cycle(self) -> float:
        """HBM bytes moved per core cycle."""
        return self.hbm_bytes_s * self.hbm_efficiency / (self.clock_ghz * 1e9)

    @property
    def ici_bytes_cycle(self) -> float:
        """Interconnect bytes sent per core cycle."""
        return self.ici_bytes_s / (self.clock_ghz * 1e9)

    def cycles(self, us: float) -> float:
        """Core cycles in `us` microseconds."""
        return us * 1e3 * self.clock_ghz

    def us(self, cycles: float) -> float:
        """Microseconds in `cycles` core cycles."""
        return cycles / (1e3 * self.clock_ghz)


CALIBRATED = Knobs("calibrated")
FAST_CLOCK = Knobs("2.2 GHz clock", clock_ghz=2.2)
SLOW_EXCHANGE = Knobs("+1 us remote latency", remote_latency_us=2.4)
KNOB_SETS = (CALIBRATED, FAST_CLOCK, SLOW_EXCHANGE)

# Public measurements (8 cores, 2x2x1) put an exchange among 8 cores at 3.4 us or more, which each
# core pays seven times a layer, and links at 97 GB/s, shared by two cores. The figures are what the
# network models that they allow give for the decode kernel, from replicas of the measured programs.
NETWORK_CAVEAT = (
    "the network model (1.4 us an exchange, 100 GB/s into each core) is contradicted by public v7 "
    "measurements; the models that they allow give about 3.4 ms for 1 row (2.8 to 5.6), 6.0 for 8 "
    "rows (5.5 to 7.8), 0.83 and 0.65 of the peer's order of work"
)
