"""Finding an interpreter on a machine whose `python3` may be too old."""

import os
import subprocess
import sys
from pathlib import Path

import kimi

ROOT = Path(kimi.__file__).parents[1]
FIND = f"source {ROOT}/scripts/setup.sh; find_python"


def find(path: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `find_python` with nothing but `path` and bash's own tools."""
    clean = {"PATH": f"{path}:/usr/bin:/bin", "HOME": "/nonexistent", "PYENV_ROOT": "/nonexistent"}
    return subprocess.run(
        ["/bin/bash", "-c", FIND], env=clean | env, capture_output=True, text=True, check=False
    )


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
