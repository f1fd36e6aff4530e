"""Virtual devices: their number is settled before jax starts."""

import jax
import pytest


def require_devices(count: int) -> None:
    """Skips a test for which there are too few."""
    found = jax.device_count()
    if found < count:
        pytest.skip(
            f"needs {count} devices, found {found}: set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
