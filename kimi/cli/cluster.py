"""Joins the processes of a program, one on each host of a slice."""

import atexit
import os
import re
import sys
import threading
from collections.abc import Sequence

from kimi.cli.rendezvous import Rendezvous
from kimi.errors import InputError

COORDINATOR, COUNT, INDEX = "KIMI_COORDINATOR", "KIMI_HOST_COUNT", "KIMI_HOST_INDEX"
"""Set by `scripts/launch/host.sh`: HOST:PORT of host 0, the number of hosts, the index of this."""

JOIN_SECONDS = "KIMI_JOIN_SECONDS"
"""How long the hosts wait for each other."""

_JOIN_SECONDS = 60
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]/,@]+)):([0-9]{1,6})")
_LEAVE_SECONDS = 1
_SHUTDOWN_SECONDS = 7 * 24 * 3600  # hosts may finish hours apart; jax aborts later ones


def join_cluster() -> None:
    """Connects to the other hosts if a launcher started this process; call before using devices.

    Raises:
      InputError: the launcher's variables are invalid, host 0 cannot be reached, or a host does
        not come within `KIMI_JOIN_SECONDS` (60).
    """
    if COORDINATOR not in os.environ:
        return
    count = _number(COUNT, 1, 9999)
    index = _number(INDEX, 0, count - 1)
    seconds = _number(JOIN_SECONDS, 1, 86400, _JOIN_SECONDS)
    rendezvous = _rendezvous(COORDINATOR, os.environ[COORDINATOR], count, index)
    if count > 1:
        _join(rendezvous, seconds, None)


def join_platform() -> None:
    """Connects to the other hosts as the platform (Cloud TPU, Slurm, MPI) describes them to jax.

    Raises InputError if it does not, and as `join_cluster` does.
    """
    import jax

    from kimi.jax_private import private

    if jax.distributed.is_initialized():
        return
    seconds = _number(JOIN_SECONDS, 1, 86400, _JOIN_SECONDS)
    find = private("clusters", "ClusterEnv").auto_detect_unset_distributed_params
    address, count, index, devices = find(
        os.environ.get("JAX_COORDINATOR_ADDRESS"), None, None, None, None, seconds
    )
    if address is None or count is None or index is None:
        raise InputError(
            "--distributed: expected a platform that describes the hosts, found none: start "
            "the command on every host through scripts/launch"
        )
    _join(_rendezvous("--distributed", address, count, index), seconds, devices)


def leave_cluster(code: int) -> int:
    """Call when this process fails; otherwise jax waits for the other hosts to finish.

    Args:
      code: exit code of the process.
    Returns: the same, if there is no host to wait for; otherwise the process ends here.
    """
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return code
    farewell = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    farewell.start()
    farewell.join(_LEAVE_SECONDS)  # the other hosts may be failing too
    if farewell.is_alive():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _join(rendezvous: Rendezvous, seconds: int, devices: Sequence[int] | None) -> None:
    import jax

    rendezvous.wait(seconds)
    # Hosts connect directly; gRPC would use a proxy from the environment.
    os.environ["no_grpc_proxy"] = rendezvous.host
    jax.config.update("jax_check_proxy_envs", False)
    try:
        jax.distributed.initialize(
            rendezvous.address, rendezvous.count, rendezvous.index, devices,
            initialization_timeout=max(seconds, _JOIN_SECONDS),
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS, cluster_detection_method="deactivate",
        )  # fmt: skip
    except (RuntimeError, ValueError) as e:
        reason = " ".join(str(e).split())
        raise rendezvous.error(f"{reason}: look at the log of host 0") from None
    atexit.register(_leave_after_a_traceback)


def _leave_after_a_traceback() -> None:
    if hasattr(sys, "last_exc"):
        leave_cluster(1)


def _rendezvous(name: str, address: str, count: int, index: int) -> Rendezvous:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise InputError(
            f"{name}: expected HOST:PORT of host 0 (IPv6 as [ADDRESS]:PORT), found {address!r}"
        )
    port = int(match[3])
    if not 1 <= port <= 65535:
        raise InputError(f"{name}: expected a port from 1 to 65535, found {address!r}")
    return Rendezvous(match[1] or match[2], port, count, index)


def _number(name: str, least: int, most: int, default: int | None = None) -> int:
    value = os.environ.get(name, "" if default is None else str(default))
    if not re.fullmatch("[0-9]{1,6}", value) or not least <= int(value) <= most:
        raise InputError(f"{name}: expected a whole number from {least} to {most}, found {value!r}")
    return int(value)
