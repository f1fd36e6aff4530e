"""A rendezvous of the hosts of a program before jax connects them.

jax aborts the process with a C++ trace if a host cannot be reached or does not come. So all hosts
first connect to host 0 by plain TCP, and host 0 reports to each whether all have come. It closes
its port before that, and jax then listens on it.
"""

import contextlib
import os
import queue
import re
import socket
import threading
import time
from dataclasses import dataclass

from kimi.errors import InputError

_TRY_SECONDS, _PAUSE_SECONDS = 5.0, 0.2  # of one attempt to connect; between two attempts
_GRACE_SECONDS = 2.0  # for a report to arrive; for other hosts to connect after a conflict
# Index, count, seconds left.
_HELLO = re.compile(rb"kimi-host ([0-9]{1,6}) ([0-9]{1,6}) ([0-9]{1,7}[.][0-9])\n")
_COMPLETE, _FAILED = "all here", "not all: "


@dataclass(frozen=True)
class Rendezvous:
    """Where the hosts meet, and which of them this is.

    Attributes:
      host, port: of host 0; an IPv6 address without brackets.
      count, index: the number of hosts, and the index of this one.
    """

    host: str
    port: int
    count: int
    index: int

    @property
    def address(self) -> str:
        """HOST:PORT, as jax takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def error(self, problem: str) -> InputError:
        """The error to raise if this host cannot join."""
        hosts = f"the {self.count} hosts at {self.address}"
        return InputError(f"host {self.index}: cannot join {hosts}: {problem}")

    def wait(self, seconds: float) -> None:
        """Waits until all hosts have connected to host 0.

        Raises:
          InputError: host 0 cannot be reached or a host does not come within `seconds`; two hosts
            have the same index, or different counts; the port is in use.
        """
        deadline = time.monotonic() + seconds
        if self.index == 0:
            try:
                listener = _listen(self.port)
            except OSError as e:
                remedy = (
                    "end the program that holds it (ss -ltnp), or set another KIMI_PORT for all"
                )
                reason = os.strerror(e.errno or 0)
                raise self.error(f"port {self.port}: {reason}: {remedy}") from None
            threading.Thread(target=self._serve, args=(listener, deadline), daemon=True).start()
        # In a thread, as a name lookup may exceed the deadline and cannot be interrupted.
        reports: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=lambda: reports.put(self._connect(deadline)), daemon=True).start()
        try:
            problem = reports.get(timeout=seconds + _TRY_SECONDS + _GRACE_SECONDS)
        except queue.Empty:
            problem = f"no answer from the name service for {self.host!r}"
        if problem:
            raise self.error(problem)

    def _connect(self, deadline: float) -> str:
        """Connects to host 0; the problem that it reports, or an empty string."""
        began = time.monotonic()
        while (left := deadline - time.monotonic()) > 0:
            try:
                timeout = min(_TRY_SECONDS, left)
                with socket.create_connection((self.host, self.port), timeout) as peer:
                    peer.sendall(b"kimi-host %d %d %.1f\n" % (self.index, self.count, left))
                    peer.settimeout(left + _GRACE_SECONDS)
                    with peer.makefile("r", encoding="utf-8", errors="replace") as lines:
                        report = lines.readline(1000).strip()
                if report == _COMPLETE:
                    return ""
                if report.startswith(_FAILED):
                    return report.removeprefix(_FAILED)
                reason = "another program answers there"
            except OSError as e:
                reason = e.strerror or str(e)
            time.sleep(_PAUSE_SECONDS)
        return (
            f"tried to connect for {time.monotonic() - began:.0f} s: {reason}: look at the log of "
            "host 0, whether all hosts list it first, and whether its port is open to them"
        )

    def _serve(self, listener: socket.socket, deadline: float) -> None:
        """On host 0: waits for all hosts, then reports to each of them."""
        began, problem = time.monotonic(), ""
        addresses: dict[int, str] = {}
        hosts: list[tuple[int, socket.socket]] = []
        with contextlib.ExitStack() as connections:
            with listener:
                while len(addresses) < self.count and (left := deadline - time.monotonic()) > 0:
                    try:
                        listener.settimeout(left)
                        connection, (address, *_) = listener.accept()
                        connections.enter_context(connection)
                        hello = _read_hello(connection)
                    except OSError:
                        continue
                    if hello is None:  # another program
                        continue
                    index, count, seconds = hello
                    if conflict := self._conflict(addresses, index, count, address):
                        problem, seconds = problem or conflict, min(seconds, _GRACE_SECONDS)
                    addresses.setdefault(index, address)
                    hosts.append((index, connection))
                    # Not longer than the host with the earliest deadline waits.
                    deadline = min(deadline, time.monotonic() + seconds)
            # The port is closed now.
            if len(addresses) < self.count:
                problem = problem or self._missing(addresses, time.monotonic() - began)
            report = _FAILED + problem if problem else _COMPLETE
            # Itself last: after a failure this process ends.
            for _, connection in sorted(hosts, key=lambda host: -host[0]):
                with contextlib.suppress(OSError):
                    connection.sendall(report.encode() + b"\n")

    def _conflict(self, addresses: dict[int, str], index: int, count: int, address: str) -> str:
        if count != self.count:
            return f"host {index} ({address}) expects {count} hosts, host 0 expects {self.count}"
        if index in addresses:
            return f"two hosts have index {index}: {addresses[index]} and {address}"
        return ""

    def _missing(self, addresses: dict[int, str], waited: float) -> str:
        absent = [str(host) for host in range(self.count) if host not in addresses]
        hosts = "hosts " if len(absent) > 1 else "host "
        hosts += ", ".join(absent[:8]) + (", ..." if len(absent) > 8 else "")
        return (
            f"waited {waited:.0f} s for {hosts}: look at its log and whether it reaches this "
            "address; if hosts start later, set KIMI_JOIN_SECONDS"
        )


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):  # no IPv6 here
        return socket.create_server(("", port))


def _read_hello(connection: socket.socket) -> tuple[int, int, float] | None:
    """Index, count and seconds left of a host; None if the peer is another program."""
    connection.settimeout(_TRY_SECONDS)
    with connection.makefile("rb") as lines:
        match = _HELLO.fullmatch(lines.readline(100))
    return None if match is None else (int(match[1]), int(match[2]), float(match[3]))
