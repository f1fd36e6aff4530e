"""Several processes load together; what they tell each other."""

import contextlib
import os
import re
import socket
import subprocess
import sys

import pytest

from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.loading import hosts
from kimi.loading.errors import LoadError
from kimi.loading.hosts import Hosts
from kimi.loading.stream import checkpoint_totals
from tests import waiting
from tests.unit.loading import host_process
from tests.unit.loading.test_store import write


def run(small, store, count, breaks="none") -> list[str]:
    """The last lines of all hosts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, host_process.__file__]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(waiting.started(
                [*command, i, count, port, small.path, store, breaks], env=environment, **pipes
            ))
            for i in range(count)
        ]  # fmt: skip
        outputs = [p.communicate(timeout=waiting.limit(30)) for p in processes]
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0 and out, err
    return [out.strip().splitlines()[-1] for out, _ in outputs]


@pytest.fixture(scope="module")
def store(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("hosts") / "store"
    write(small, path)
    return path


def test_each_host_loads_its_own_ranks(small, store):
    layout = Layout(small.config, Mesh(4, 2))
    own = [checkpoint_totals(layout, small, ranks).nbytes for ranks in ((0, 1), (2, 3))]
    for line in run(small, store, 2):
        totals = [int(n) for n in re.findall(r"\d+", line.removeprefix("loaded"))]
        assert totals[-1] == sum(own), "the progress of both hosts"


@pytest.mark.parametrize("breaks", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_the_error_of_one_host_ends_all(small, store, breaks):
    lines = run(small, store, 2, breaks)
    own = lines[int(breaks)]
    assert re.search(r"^error: .*safetensors: language_model.*Input/output error$", own)
    assert lines[1 - int(breaks)] == own.replace("error: ", f"error: host {breaks}: ")


class Table(dict):
    """What hosts share, without processes."""

    def key_value_set(self, key, value, allow_overwrite):
        assert allow_overwrite
        self[key] = value

    def key_value_dir_get(self, key):
        return [(k, v) for k, v in self.items() if k.startswith(key)]


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setattr(hosts, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(hosts, "_FAREWELL_SECONDS", 0.05)
    table = Table()
    found = []
    for i in range(2):
        monkeypatch.setattr(hosts, "_number", iter([0]))
        found.append(Hosts(table, i, 2))
    return found


def test_progress_is_summed(two):
    assert two[0].progress(10, 100) == (10, 100)
    assert two[1].progress(5, 50) == (15, 150)
    assert two[0].progress(20, 100) == (25, 150)


def test_finishing_waits_for_all(two):
    two[1].progress(5, 50)
    two[1]._set("done", "yes")
    two[1]._set("progress", "50 50")
    assert two[0].finish(100) == (150, 150)


def test_an_error_is_told_while_others_load_and_while_they_wait(two):
    two[0].fail(LoadError("file.safetensors: broken\nbadly"))
    with pytest.raises(LoadError, match=r"^host 0: file.safetensors: broken badly$"):
        two[1].progress(0, 1)
    with pytest.raises(LoadError, match="^host 0: file.safetensors"):
        two[1].finish(1)


def test_an_error_of_another_host_is_not_told_again(two):
    two[0].fail(ValueError())
    with pytest.raises(LoadError, match="^host 0: ValueError$") as caught:
        two[1].finish(1)
    two[1].fail(caught.value)
    assert not any("error/1" in key for key in two[1]._table)
    two[0].fail(ValueError())  # everybody knows: nothing to wait for


def test_hosts_that_are_gone(two, monkeypatch):
    def gone(*unused):
        raise RuntimeError("UNAVAILABLE:\n no connection")

    monkeypatch.setattr(Table, "key_value_dir_get", gone)
    with pytest.raises(LoadError, match="cannot be reached: UNAVAILABLE: no connection"):
        two[0].progress(0, 1)
    two[0].fail(ValueError("mine"))  # no error beside the one that is raised anyway
