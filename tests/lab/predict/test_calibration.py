"""The kept traces are those of the replicas as they are compiled now."""

import pytest

from kimi.lab.predict.calibration import REPLICAS, read_traces, record
from kimi.lab.predict.costs import ALLOWED

QUICK = [name for name, replica in REPLICAS.items() if replica.turns == (2, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("names", [QUICK, ["ring bf16", "ring int8"], ["K3, 1 row"]])
def test_a_new_recording_takes_as_long(names):
    """Whole steps of 62 layers are left out: they compile for minutes."""
    kept, found = read_traces(), record({name: REPLICAS[name] for name in names})
    assert set(found) == {f"{name} x{turns}" for name in names for turns in REPLICAS[name].turns}
    for name, trace in found.items():
        for costs in ALLOWED:
            assert trace.us(costs) == pytest.approx(kept[name].us(costs), rel=1e-6), name
