"""Several processes, one on each host of a slice, as one program."""

import os

from kimi.errors import InputError

COORDINATOR, COUNT, INDEX = "KIMI_COORDINATOR", "KIMI_HOST_COUNT", "KIMI_HOST_INDEX"
"""What `scripts/launch/host.sh` sets: host:port of host 0, how many hosts, which one this is."""

_CONNECT_SECONDS = 300


def join_cluster() -> None:
    """Connects to the other hosts if a launcher started this process; call before using devices.

    Raises:
      InputError: the launcher's variables are incomplete, or host 0 does not answer.
    """
    if COORDINATOR not in os.environ:
        return
    count, index = _number(COUNT), _number(INDEX)
    if not 0 <= index < count:
        raise InputError(f"{INDEX}: expected 0 to {count - 1} ({COUNT}={count}), found {index}")
    if count == 1:
        return
    import jax

    address = os.environ[COORDINATOR]
    try:
        jax.distributed.initialize(
            address, count, index, initialization_timeout=_CONNECT_SECONDS,
            cluster_detection_method="deactivate",
        )  # fmt: skip
    except (RuntimeError, ValueError) as e:
        reason = " ".join(str(e).split())
        raise InputError(
            f"host {index}: cannot join the {count} hosts at {address}: {reason}: look at "
            "the log of host 0, and whether the port is open between the hosts"
        ) from None


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    if not value.isdigit():
        raise InputError(f"{name}: expected a number beside {COORDINATOR}, found {value!r}")
    return int(value)
