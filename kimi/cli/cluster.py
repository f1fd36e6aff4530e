"""Several processes, one on each host of a slice, as one program."""

import atexit
import os
import re
import sys
import threading
from collections.abc import Sequence

from kimi.cli.rendezvous import Place, meet
from kimi.errors import InputError

COORDINATOR, COUNT, INDEX = "KIMI_COORDINATOR", "KIMI_HOST_COUNT", "KIMI_HOST_INDEX"
"""What `scripts/launch/host.sh` sets: host:port of host 0, how many hosts, which one this is."""

PATIENCE = "KIMI_JOIN_SECONDS"
"""How long the hosts wait for each other."""

_PATIENCE_SECONDS = 60
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]/,@]+)):([0-9]{1,6})")
_LEAVE_SECONDS = 1
# jax ends those with a C++ trace that are late by more: hosts may finish hours apart.
_LAST_HOST_SECONDS = 7 * 24 * 3600


def join_cluster() -> None:
    """Connects to the other hosts if a launcher started this process; call before using devices.

    Raises:
      InputError: the launcher's variables are wrong, host 0 cannot be reached, or a host has not
        come in `KIMI_JOIN_SECONDS` (60).
    """
    if COORDINATOR not in os.environ:
        return
    count = _number(COUNT, 1, 9999)
    index = _number(INDEX, 0, count - 1)
    seconds = _number(PATIENCE, 1, 86400, _PATIENCE_SECONDS)
    place = _place(COORDINATOR, os.environ[COORDINATOR], count, index)
    if count > 1:
        _join(place, seconds, None)


def join_platform() -> None:
    """Connects to the other hosts where the platform (Cloud TPU, Slurm, MPI) tells jax of them.

    Raises:
      InputError: it does not, or as `join_cluster`.
    """
    import jax

    from kimi.jax_private import private

    if jax.distributed.is_initialized():
        return
    seconds = _number(PATIENCE, 1, 86400, _PATIENCE_SECONDS)
    find = private("clusters", "ClusterEnv").auto_detect_unset_distributed_params
    address, count, index, devices = find(
        os.environ.get("JAX_COORDINATOR_ADDRESS"), None, None, None, None, seconds
    )
    if address is None or count is None or index is None:
        raise InputError(
            "--distributed: expected a platform that tells of the other hosts, found none: start "
            "the command on every host through scripts/launch"
        )
    _join(_place("--distributed", address, count, index), seconds, devices)


def leave_cluster(code: int) -> int:
    """To be called when this process fails: without it, jax waits for the other hosts to finish.

    Args:
      code: exit code of the process.
    Returns: the same, where there is nobody to wait for; otherwise the process ends here.
    """
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return code
    farewell = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    farewell.start()
    farewell.join(_LEAVE_SECONDS)  # all of them may be about to fail
    if farewell.is_alive():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _join(place: Place, seconds: int, devices: Sequence[int] | None) -> None:
    import jax

    meet(place, seconds)
    # Hosts call each other directly; gRPC would take a proxy if it is told of one.
    os.environ["no_grpc_proxy"] = place.host
    jax.config.update("jax_check_proxy_envs", False)
    try:
        jax.distributed.initialize(
            place.address, place.count, place.index, devices,
            initialization_timeout=max(seconds, _PATIENCE_SECONDS),
            shutdown_timeout_seconds=_LAST_HOST_SECONDS, cluster_detection_method="deactivate",
        )  # fmt: skip
    except (RuntimeError, ValueError) as e:
        raise InputError(
            f"host {place.index}: cannot join the {place.count} hosts at {place.address}: "
            f"{' '.join(str(e).split())}: look at the log of host 0"
        ) from None
    atexit.register(_leave_after_a_traceback)


def _leave_after_a_traceback() -> None:
    if hasattr(sys, "last_exc"):
        leave_cluster(1)


def _place(name: str, address: str, count: int, index: int) -> Place:
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise InputError(
            f"{name}: expected HOST:PORT of host 0 (IPv6 as [ADDRESS]:PORT), found {address!r}"
        )
    port = int(found[3])
    if not 1 <= port <= 65535:
        raise InputError(f"{name}: expected a port from 1 to 65535, found {address!r}")
    return Place(found[1] or found[2], port, count, index)


def _number(name: str, least: int, most: int, default: int | None = None) -> int:
    value = os.environ.get(name, "" if default is None else str(default))
    if not re.fullmatch("[0-9]{1,6}", value) or not least <= int(value) <= most:
        raise InputError(f"{name}: expected a whole number from {least} to {most}, found {value!r}")
    return int(value)
