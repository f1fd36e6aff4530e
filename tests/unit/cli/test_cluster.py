"""Hosts that meet before jax joins them, and what is said where they cannot."""

import socket
import subprocess
import sys
import threading

import pytest

from kimi.cli.cluster import join_cluster, join_platform
from kimi.cli.rendezvous import Rendezvous
from kimi.errors import InputError
from tests import waiting

LONG = waiting.limit(6)


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def gather(hosts: list[Rendezvous], seconds: float = LONG) -> list[str]:
    """The error of each host, or an empty string."""
    found = [""] * len(hosts)

    def one(i: int) -> None:
        try:
            hosts[i].wait(seconds)
        except InputError as e:
            found[i] = str(e)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any("\n" in line for line in found)
    return found


def test_all_meet_and_the_port_is_free(port):
    hosts = [Rendezvous("127.0.0.1", port, 4, i) for i in (2, 3, 0, 1)]
    assert gather(hosts) == [""] * 4
    with socket.create_server(("127.0.0.1", port)):
        pass
    assert gather([Rendezvous("localhost", port, 2, i) for i in (0, 1)]) == ["", ""], "again"


def test_a_host_that_never_comes_ends_the_others(port):
    found = gather([Rendezvous("127.0.0.1", port, 5, i) for i in (0, 1, 3)], 0.5)
    for index, line in zip((0, 1, 3), found, strict=True):
        assert line.startswith(
            f"host {index}: cannot join the 5 hosts at 127.0.0.1:{port}: waited "
        )
        assert " s for hosts 2, 4: look at its log" in line and "KIMI_JOIN_SECONDS" in line


def test_a_host_that_has_little_time_left_ends_all(port):
    found: list[str] = []
    other = threading.Thread(
        target=lambda: found.extend(gather([Rendezvous("127.0.0.1", port, 3, 0)], LONG))
    )
    other.start()
    [line] = gather([Rendezvous("127.0.0.1", port, 3, 1)], 1)
    other.join()
    assert "for host 2: look" in line and "for host 2: look" in found[0]


@pytest.mark.parametrize(
    "host, reason",
    [("127.0.0.1", "Connection refused"), ("no.such.host.invalid", ""), ("255.255.255.255", "")],
)
def test_host_0_cannot_be_reached(port, host, reason):
    [line] = gather([Rendezvous(host, port, 2, 1)], 0.5)
    assert line.startswith(f"host 1: cannot join the 2 hosts at {host}:{port}: tried to connect ")
    assert reason in line and "look at the log of host 0" in line


def test_a_host_0_that_is_somewhere_else():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        [line] = gather([Rendezvous("127.0.0.1", taken, 2, 0)], 0.5)
    assert f"port {taken}: Address already in use: end the program that holds it" in line


def test_another_program_answers(port):
    with socket.create_server(("127.0.0.1", port)) as other:

        def speak():
            while True:
                connection, _ = other.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 400\xff\r\n")

        threading.Thread(target=speak, daemon=True).start()
        [line] = gather([Rendezvous("127.0.0.1", port, 2, 1)], 0.5)
    assert "another program answers there" in line


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n", b"", b"kimi-host 1 2 9.9.9\n"])
def test_strangers_are_ignored(port, noise):
    def knock():
        for _ in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    stranger.sendall(noise)
                    return
            except OSError:
                pass

    threading.Thread(target=knock, daemon=True).start()
    assert gather([Rendezvous("127.0.0.1", port, 2, i) for i in (0, 1)]) == ["", ""]


def test_one_index_twice(port):
    found = gather([Rendezvous("127.0.0.1", port, 3, i) for i in (0, 1, 1)])
    assert all("two hosts have index 1: " in line for line in found)


def test_different_counts(port):
    found = gather([Rendezvous("127.0.0.1", port, 3, 0), Rendezvous("127.0.0.1", port, 2, 1)])
    assert all("host 1 (" in f and ") expects 2 hosts, host 0 expects 3" in f for f in found)


GOOD = {"KIMI_COORDINATOR": "h:1", "KIMI_HOST_COUNT": "2", "KIMI_HOST_INDEX": "1"}
ADDRESSES = [
    "", "h", "h:", ":8476", "h:x", "h:-1", "h:0", "h:65536", "h:99999999", "::1:8476", "h:1:2",
    " h:1", "h:1 ", "h:1\n", "http://h:1", "h,i:1", "u@h:1", "[h]:1", "h:1.5", "h:\u0661",
]  # fmt: skip
NUMBERS = ["", " ", "x", "-1", "+1", "1.0", "1e0", " 1", "1\n", "\u00b2", "\u0661", "9" * 30]


@pytest.mark.parametrize(
    "name, value",
    [("KIMI_COORDINATOR", address) for address in ADDRESSES]
    + [(name, n) for name in ("KIMI_HOST_COUNT", "KIMI_HOST_INDEX") for n in NUMBERS]
    + [("KIMI_HOST_COUNT", "0"), ("KIMI_HOST_INDEX", "2"), ("KIMI_JOIN_SECONDS", "0")],
)
def test_bad_variables(monkeypatch, name, value):
    for key, good in (GOOD | {name: value}).items():
        monkeypatch.setenv(key, good)
    with pytest.raises(InputError, match=f"^{name}: expected .*, found ") as e:
        join_cluster()
    assert str(e.value).endswith(f"found {value!r}")


def test_one_host_alone_is_checked_and_joins_nobody(monkeypatch):
    for key, value in (GOOD | {"KIMI_HOST_COUNT": "1", "KIMI_HOST_INDEX": "0"}).items():
        monkeypatch.setenv(key, value)
    join_cluster()
    monkeypatch.setenv("KIMI_COORDINATOR", "h:0")
    with pytest.raises(InputError, match="a port from 1 to 65535"):
        join_cluster()


def test_ipv6_addresses():
    assert Rendezvous("::1", 5, 2, 0).address == "[::1]:5"


FAILS = """
import sys
import kimi.cli.main as main
from kimi.errors import InputError
class Command:
    def add_options(parser): pass
    def run(args):
        print("joined", flush=True)
        if sys.argv[1] == "1":
            raise InputError("this host alone")
        sys.stdin.read()
sys.modules["kimi.cli.inspect"] = Command
sys.exit(main.main(["inspect"]))
"""


def test_a_host_that_fails_does_not_wait_for_the_others(port):
    """They are at work, and jax would hold it for minutes. A proxy is no way to a host."""
    base = {"KIMI_COORDINATOR": f"127.0.0.1:{port}", "KIMI_HOST_COUNT": "2"}
    base |= {"KIMI_JOIN_SECONDS": str(int(LONG)), "JAX_PLATFORMS": "cpu"}
    base |= {"http_proxy": "http://127.0.0.1:9", "PYTHONPATH": ":".join(sys.path)}
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    hosts = [
        waiting.started(
            [sys.executable, "-c", FAILS, i], env=base | {"KIMI_HOST_INDEX": str(i)}, text=True,
            **options,
        ) for i in (0, 1)
    ]  # fmt: skip
    with hosts[0] as zero, hosts[1] as one:
        assert one.communicate(timeout=LONG) == ("joined\n", "error: this host alone\n")
        assert one.returncode == 2
        assert zero.poll() is None and zero.stdout.readline() == "joined\n"


def test_a_platform_that_tells_of_the_hosts(monkeypatch):
    """Slurm here; what it says is checked as a launcher's is."""
    with pytest.raises(InputError, match="--distributed: expected a platform that describes"):
        join_platform()
    step = {"JOB_ID": "1", "STEP_NODELIST": "127.0.0.1", "NTASKS": "2", "PROCID": "1"}
    for key, value in (step | {"LOCALID": "0"}).items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    monkeypatch.setenv("KIMI_JOIN_SECONDS", "1")
    with pytest.raises(InputError, match="^host 1: cannot join the 2 hosts at 127.0.0.1:61441: "):
        join_platform()
