"""The hosts of a program meet before jax joins them.

jax ends the process with a C++ trace where a host cannot be reached or does not come. So all hosts
first call at the same address by plain TCP, and host 0 tells everyone whether all are there. Its
port is free again when that is said, and jax takes it.
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

_TRY_SECONDS, _PAUSE_SECONDS = 5.0, 0.2  # of one attempt to connect; between two of them
_GRACE_SECONDS = 2.0  # for what host 0 says to arrive, and for hosts still to hear of a mistake
_CALL = re.compile(
    rb"kimi-host ([0-9]{1,6}) ([0-9]{1,6}) ([0-9]{1,7}[.][0-9])\n"
)  # index, count, seconds
_ALL_HERE, _NOT_ALL = "all here", "not all: "


@dataclass(frozen=True)
class Place:
    """Where the hosts meet, and which of them this one is.

    Attributes:
      host, port: of host 0; an IPv6 address without brackets.
      count, index: how many hosts, and which of them this is.
    """

    host: str
    port: int
    count: int
    index: int

    @property
    def address(self) -> str:
        """As jax takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def meet(place: Place, seconds: float) -> None:
    """Returns when all hosts have called at host 0.

    Raises:
      InputError: host 0 cannot be reached, or a host has not come, in so many seconds; two hosts
        are the same, or count differently; the port is taken.
    """
    deadline = time.monotonic() + seconds
    if place.index == 0:
        try:
            listener = _listen(place.port)
        except OSError as e:
            remedy = "end the program that holds it (ss -ltnp), or set another KIMI_PORT for all"
            reason = os.strerror(e.errno or 0)
            raise _error(place, f"port {place.port}: {reason}: {remedy}") from None
        threading.Thread(target=_receive, args=(listener, place, deadline), daemon=True).start()
    # In a thread, as a name may be looked up for longer than there is time, and cannot be stopped.
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    caller = threading.Thread(target=lambda: answers.put(_call(place, deadline)), daemon=True)
    caller.start()
    try:
        problem = answers.get(timeout=seconds + _TRY_SECONDS + _GRACE_SECONDS)
    except queue.Empty:
        problem = f"no answer from the name service for {place.host!r}"
    if problem:
        raise _error(place, problem)


def _error(place: Place, problem: str) -> InputError:
    return InputError(
        f"host {place.index}: cannot join the {place.count} hosts at {place.address}: {problem}"
    )


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):  # no IPv6 here
        return socket.create_server(("", port))


def _call(place: Place, deadline: float) -> str:
    """What is wrong, or nothing, as host 0 says."""
    began = time.monotonic()
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(
                (place.host, place.port), min(_TRY_SECONDS, left)
            ) as connection:
                connection.sendall(b"kimi-host %d %d %.1f\n" % (place.index, place.count, left))
                connection.settimeout(left + _GRACE_SECONDS)
                with connection.makefile("r", encoding="utf-8", errors="replace") as words:
                    answer = words.readline(1000).strip()
            if answer == _ALL_HERE:
                return ""
            if answer.startswith(_NOT_ALL):
                return answer.removeprefix(_NOT_ALL)
            reason = "another program answers there"
        except OSError as e:
            reason = e.strerror or str(e)
        time.sleep(_PAUSE_SECONDS)
    waited = time.monotonic() - began
    return (
        f"tried to connect for {waited:.0f} s: {reason}: look at the log of host 0, whether it is "
        "the first host on all of them, and whether the port is open between the hosts"
    )


def _receive(listener: socket.socket, place: Place, deadline: float) -> None:
    """Of host 0: waits for all, tells all how it went."""
    began, problem = time.monotonic(), ""
    peers: dict[int, str] = {}
    calls: list[tuple[int, socket.socket]] = []
    with contextlib.ExitStack() as connections:
        with listener:
            while len(peers) < place.count and (left := deadline - time.monotonic()) > 0:
                try:
                    listener.settimeout(left)
                    connection, peer = listener.accept()
                    connections.enter_context(connection)
                    call = _read_call(connection)
                except OSError:
                    continue
                if call is None:
                    continue
                index, count, seconds = call
                if found := _conflict(place, peers, index, count, peer[0]):
                    problem, seconds = problem or found, min(seconds, _GRACE_SECONDS)
                peers.setdefault(index, peer[0])
                calls.append((index, connection))
                deadline = min(deadline, time.monotonic() + seconds)  # nobody waits longer
        # The port is free now.
        if len(peers) < place.count:
            problem = problem or _missing(place, peers, time.monotonic() - began)
        answer = _NOT_ALL + problem if problem else _ALL_HERE
        # Its own call last: with a bad answer this process ends.
        for _, connection in sorted(calls, key=lambda call: -call[0]):
            with contextlib.suppress(OSError):
                connection.sendall(answer.encode() + b"\n")


def _read_call(connection: socket.socket) -> tuple[int, int, float] | None:
    """Index, count and seconds left of a host; None if it is something else that calls."""
    connection.settimeout(_TRY_SECONDS)
    with connection.makefile("rb") as words:
        found = _CALL.fullmatch(words.readline(100))
    return None if found is None else (int(found[1]), int(found[2]), float(found[3]))


def _conflict(place: Place, peers: dict[int, str], index: int, count: int, peer: str) -> str:
    if count != place.count:
        return f"host {index} ({peer}) was told of {count} hosts, host 0 of {place.count}"
    if index in peers:
        return f"host {index} is there twice, at {peers[index]} and {peer}: one index a host"
    return ""


def _missing(place: Place, peers: dict[int, str], waited: float) -> str:
    absent = [str(host) for host in range(place.count) if host not in peers]
    shown = ", ".join(absent[:8]) + (", ..." if len(absent) > 8 else "")
    return (
        f"waited {waited:.0f} s for host{'s' if len(absent) > 1 else ''} {shown}: look at its log "
        "and whether it reaches this address; where hosts start apart, set KIMI_JOIN_SECONDS"
    )
