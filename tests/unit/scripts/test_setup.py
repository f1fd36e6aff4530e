"""Finding an interpreter on a machine whose `python3` may be too old."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kimi
from tests import waiting

ROOT = Path(kimi.__file__).parents[1]
FIND = f"source {ROOT}/scripts/setup.sh; find_python"


def find(path: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `find_python` with nothing but `path` and bash's own tools."""
    clean = {"PATH": f"{path}:/usr/bin:/bin", "HOME": "/nonexistent", "PYENV_ROOT": "/nonexistent"}
    return waiting.run(["/bin/bash", "-c", FIND], env=clean | env)


def fake(folder: Path, name: str, script: str) -> Path:
    """An executable of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/bash\n{script}\n")
    file.chmod(0o755)
    return file


OLD = "exit 1"  # too old, or a shim without an interpreter behind it: the version check fails


def old_everywhere(folder: Path) -> None:
    """Hides the machine's own interpreters."""
    for name in ("python3.13", "python3.12", "python3.14", "python3", "python", "uv"):
        fake(folder, name, OLD)


def test_an_old_python3_is_passed_over(tmp_path):
    old_everywhere(tmp_path)
    good = fake(tmp_path, "python3.12", f'exec {sys.executable} "$@"')
    assert find(str(tmp_path)).stdout.strip() == str(good)


def test_pyenv_versions_are_searched(tmp_path):
    old_everywhere(tmp_path)
    fake(tmp_path / "versions" / "3.11.7" / "bin", "python", OLD)
    good = fake(tmp_path / "versions" / "3.13.0" / "bin", "python", f'exec {sys.executable} "$@"')
    assert find(str(tmp_path), PYENV_ROOT=str(tmp_path)).stdout.strip() == str(good)


def test_uv_is_asked_last(tmp_path):
    old_everywhere(tmp_path)
    good = fake(tmp_path / "elsewhere", "python", f'exec {sys.executable} "$@"')
    fake(tmp_path, "uv", f'[ "$1 $2" = "python find" ] && echo {good}')
    assert find(str(tmp_path)).stdout.strip() == str(good)


def test_the_users_choice_comes_first(tmp_path):
    good = fake(tmp_path, "mine", f'exec {sys.executable} "$@"')
    assert find(os.environ["PATH"], KIMI_PYTHON=str(good)).stdout.strip() == str(good)


def test_none_at_all_is_said_clearly(tmp_path):
    old_everywhere(tmp_path)
    done = find(str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Python 3.12 or newer: not found" in done.stderr and "KIMI_PYTHON" in done.stderr


@pytest.mark.parametrize(
    "script, message",
    [
        (OLD, "expected a Python of 3.12 or newer"),
        ("case $* in *importlib*) exit 1;; esac", "expected a Python that has this project"),
    ],
)
def test_a_bad_choice_is_refused(tmp_path, script, message):
    """And no other interpreter is taken instead."""
    bad = fake(tmp_path, "mine", script)
    done = find(os.environ["PATH"], KIMI_PYTHON=str(bad))
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"setup: KIMI_PYTHON: {message}") and f"'{bad}'" in done.stderr


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose interpreter notes what it is asked to do, and where."""
    root = tmp_path / "checkout"
    (root / "scripts").mkdir(parents=True)
    for name in ("scripts/setup.sh", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, root / name)
    note = f'case $* in *install*) echo "$PWD $UV_CACHE_DIR $*" >>{root}/calls;; esac'
    fake(root / ".venv" / "bin", "python", note)
    return root


def setup(checkout: Path, command: str, **env: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "HOME": str(checkout.parent)}
    return waiting.run(["bash", "-c", command], env=base | env, cwd="/")


def calls(checkout: Path) -> list[str]:
    """Of uv, since the last time."""
    file = checkout / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [line for line in lines if "-m uv" in line]


def test_by_itself_and_sourced(checkout):
    done = setup(checkout, f"bash {checkout}/scripts/setup.sh train,eval")
    assert done.returncode == 0 and done.stderr.endswith(f"setup: {checkout}/.venv/bin/python\n")
    [call] = calls(checkout)
    assert call.startswith(f"{checkout} ") and call.endswith("--editable .[eval,train]")
    sourced = f'source {checkout}/scripts/setup.sh; install_project "eval"; pwd; echo $PYTHON'
    assert setup(checkout, sourced).stdout == f"/\n{checkout}/.venv/bin/python\n"
    assert calls(checkout) == [], "it is there already"
    setup(checkout, f"bash {checkout}/scripts/setup.sh dev")
    assert calls(checkout)[0].endswith("--editable .[dev,eval,train]"), "what was there is kept"


def test_an_unknown_extra(checkout):
    done = setup(checkout, f"bash {checkout}/scripts/setup.sh eval,tests")
    assert done.returncode == 1 and calls(checkout) == []
    assert done.stderr == (
        "setup: EXTRAS: expected some of tpu,train,eval,harness,dev, found 'tests'\n"
    )


@pytest.mark.parametrize("home", ["/dev/null", "", "/proc"])
def test_a_home_that_cannot_be_written(checkout, home):
    """uv would give up, and pip takes minutes longer."""
    setup(checkout, f"bash {checkout}/scripts/setup.sh", HOME=home)
    [call] = calls(checkout)
    assert call.split()[1] == f"{checkout}/.cache/uv"


def test_a_home_that_can_be_written(checkout):
    setup(checkout, f"bash {checkout}/scripts/setup.sh")
    [call] = calls(checkout)
    assert call.split()[1] == "-m", "UV_CACHE_DIR is not set"
