"""Links of a slice, what messages cost, and shared bandwidth."""

import json

import pytest

from kimi.errors import ConfigError, InputError
from kimi.lab.predict.costs import (
    ALLOWED,
    FREE,
    JOINT,
    MODELS,
    CostModel,
    cost_model,
    load,
    sources,
)
from kimi.lab.predict.links import SIBLING, Slice, slice_of
from kimi.lab.predict.network import Network, exchange_us
from kimi.lab.predict.queues import SharedBandwidth

HOST, RACK = Slice((2, 2, 1)), Slice((2, 2, 4))
PLAIN = CostModel("plain", compute_scale=1.0, latency_us=2.0)


def fullest(where: Slice) -> dict[str, int]:
    """Messages over each link in an exchange with all peers."""
    total: dict[str, int] = {}
    for offset in range(1, where.cores):
        for link, count in where.loads(offset).items():
            total[link] = total.get(link, 0) + count
    return total


def test_the_sibling_core_is_reached_without_a_link():
    assert RACK.loads(1) == {SIBLING: 1}


def test_two_cores_share_a_link_and_messages_pass_through_chips():
    assert HOST.loads(2) == {"x0": 2} and HOST.loads(4) == {"y0": 2}
    assert HOST.loads(6) == HOST.loads(7) == {"x0": 2, "y0": 2}
    # From z = 0 to 2 and from 1 to 3 all at once: twice over the middle.
    assert RACK.loads(16) == {"z0": 2, "z1": 4, "z2": 2}
    assert RACK.loads(24) == {"z0": 2, "z1": 4, "z2": 2}


def test_an_exchange_with_all_peers_fills_the_middle_of_the_long_side():
    """Half of 32 cores send to the other half over four links, or eight if it is a ring."""
    assert fullest(HOST) == {SIBLING: 1, "x0": 8, "y0": 8}
    open_side, ring = fullest(RACK), fullest(Slice((2, 2, 4), wrap=True))
    assert open_side["z1"] == 16 * 16 / 4 and open_side["x0"] == 16 * 16 / 8
    assert max(n for link, n in ring.items() if link.startswith("z")) == 16 * 16 / 8


def test_a_slice_by_its_name():
    assert slice_of("tpu7x:2x2x4").cores == 32 and slice_of("tpu7x:2x2x1", True).wrap
    with pytest.raises(InputError, match=r"expected tpu7x:AxBxC .* found 'v5e:2x2'"):
        slice_of("v5e:2x2")


def test_a_message_waits_for_its_links_and_the_latency():
    size = 97000  # a microsecond of a link
    assert exchange_us(PLAIN, HOST, [(2, size)]) == pytest.approx(2 + 2)
    assert exchange_us(PLAIN, HOST, [(2, size), (4, size)]) == pytest.approx(2 + 2)
    assert exchange_us(PLAIN, HOST, [(2, size), (3, size)]) == pytest.approx(4 + 2)
    assert exchange_us(PLAIN, HOST, [(1, 660000)]) == pytest.approx(1 + 2)


def test_messages_cost_one_after_another_and_an_exchange_has_a_floor():
    costly = CostModel("costly", latency_us=1.0, message_us=0.25)
    assert exchange_us(costly, RACK, [(n, 0) for n in range(1, 32)]) == pytest.approx(1 + 31 / 4)
    floored = CostModel("floored", latency_us=1.0, floor_us=((1, 2.0), (3, 4.0)))
    found = [exchange_us(floored, RACK, [(n, 0) for n in range(1, k)]) for k in (2, 3, 4, 32)]
    assert found == pytest.approx([2.0, 3.0, 4.0, 4.0])


def test_a_wait_ends_an_exchange():
    network = Network(CostModel("floored", compute_scale=1.0, floor_us=((1, 2.0),)), RACK)
    (first, *_), (later, *_) = (network.send(now, 2, 0, "a") for now in (0.0, 100.0))
    assert (first, later) == (0.0, 100.0)
    assert network.send(9500.0, 2, 0, "a")[2] < 9500 + 2.0 * 1900
    network.wait("a")
    assert network.send(9500.0, 2, 0, "a")[2] == pytest.approx(9500 + 2.0 * 1900)


@pytest.mark.parametrize("streams,ends", [(1, [10, 30, 40]), (2, [20, 40, 40]), (9, [30, 30, 40])])
def test_copies_share_the_bandwidth(streams, ends):
    """Of 10, 20 and 10 bytes at a byte a cycle."""
    queue = SharedBandwidth(1.0, streams)
    for name, size in (("a", 10), ("b", 20), ("c", 10)):
        queue.add(0.0, size, name)
    served = [queue.next() for _ in range(3)]
    assert [round(s.end) for s in served] == ends and queue.next() is None
    assert queue.busy == pytest.approx(40)


def test_time_goes_on_without_a_copy():
    queue = SharedBandwidth(1.0, 2)
    queue.add(5.0, 10, "a")
    assert queue.next(until=12.0) is None
    queue.add(12.0, 10, "b")  # shares with the last three bytes of the first one
    assert [(s.begin, s.end) for s in (queue.next(), queue.next())] == [(5, 18), (12, 25)]


def test_models_go_by_name_or_file(tmp_path):
    assert cost_model(JOINT.name) is ALLOWED[0] is MODELS["joint"]
    file = tmp_path / "slice.json"
    file.write_text(json.dumps({"latency_us": 2.5, "floor_us": [[1, 2.5], [31, 5]]}))
    found = cost_model(str(file))
    assert (found.name, found.latency_us, found.floor(16)) == ("slice", 2.5, 3.75)
    assert found.link_bytes_s == JOINT.link_bytes_s
    with pytest.raises(InputError, match=r"cost model: expected joint, .* found 'none'"):
        cost_model("none")


@pytest.mark.parametrize(
    "fields,message",
    [
        ({"speed": 1}, "speed: expected one of name, clock_ghz"),
        ({"latency_us": "fast"}, "latency_us: expected a float, found 'fast'"),
        ({"wrap": 1}, "wrap: expected a bool, found 1"),
        ({"latency_us": 0}, "latency_us: expected a number above 0, found 0"),
        ({"floor_us": [[3, 2], [1, 2]]}, "floor_us: expected rising peers and times"),
        ({"floor_us": [3]}, "floor_us: expected pairs of numbers"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path, fields, message):
    file = tmp_path / "slice.json"
    file.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=message):
        load(file)


def test_every_assumption_has_a_source():
    assert set(sources()) == set(vars(FREE)) - {"name"}
    assert all(sources().values())
