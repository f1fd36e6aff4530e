"""Start-up on a machine without a TPU, libtpu installed or not."""

import os
import sys

import pytest

from kimi import startup
from tests import waiting


def test_a_machine_without_tpu_does_not_look_for_one(monkeypatch):
    monkeypatch.setattr(startup, "TPU_DEVICE_FILES", ("/nonexistent/accel*",))
    monkeypatch.setattr(startup, "GPU_DEVICE_FILES", ("/nonexistent/nvidia*",))
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    startup.prepare_environment()
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "1" and os.environ["JAX_PLATFORMS"] == "cpu"


def test_the_users_choice_is_left_alone(monkeypatch):
    monkeypatch.setattr(startup, "TPU_DEVICE_FILES", ("/nonexistent/accel*",))
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "0")
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    startup.prepare_environment()
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "0" and os.environ["JAX_PLATFORMS"] == "tpu"


def test_a_machine_with_tpu_is_left_alone(monkeypatch, tmp_path):
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(startup, "TPU_DEVICE_FILES", (f"{tmp_path}/accel*",))
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    startup.prepare_environment()
    assert "TPU_SKIP_MDS_QUERY" not in os.environ and "JAX_PLATFORMS" not in os.environ


def test_jax_starts_with_libtpu_installed():
    """In a fresh process with none of the variables set. Without the first it would wait for the
    metadata server of a cloud, for minutes.
    """
    pytest.importorskip("libtpu")
    clean = {"TPU_SKIP_MDS_QUERY", "JAX_PLATFORMS"}
    env = {k: v for k, v in os.environ.items() if k not in clean}
    code = (
        "import kimi, jax, os; print(os.environ['TPU_SKIP_MDS_QUERY'], jax.devices()[0].platform)"
    )
    done = waiting.run([sys.executable, "-c", code], env=env)
    assert done.stdout == "1 cpu\n", done.stderr


@pytest.mark.parametrize("platform", ["cuda", "no-such"])
def test_a_platform_without_devices_is_one_line(platform):
    """For commands and in Python; `cuda` fails in jax by an assertion without a word."""
    code = (
        "import sys, kimi; from kimi.cli.main import main\n"
        "try: kimi.load(backend='kernel')\n"
        "except kimi.errors.KimiError as e: print(e)\n"
        "sys.exit(main(['logits', '--ids', '1', '--out', '/dev/null']))"
    )
    done = waiting.run([sys.executable, "-c", code], env=os.environ | {"JAX_PLATFORMS": platform})
    expected = f"JAX_PLATFORMS: expected platforms with devices here, found '{platform}': "
    assert done.returncode == 2 and done.stdout.startswith(expected)
    assert done.stderr == f"error: {done.stdout}" and done.stdout.count("\n") == 1
