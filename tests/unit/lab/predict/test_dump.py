"""Which compiler's dumps are read."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

import kimi
from kimi.errors import InputError
from kimi.lab.main import main
from kimi.lab.predict.dump import KNOWN_LIBTPU, dump_flags, schedule_files
from kimi.lab.predict.launch import Target, compile_targets


@pytest.fixture
def libtpu(monkeypatch):
    """Says what is installed: a version, or None for a libtpu without one."""

    def install(version: str | None) -> None:
        def found(name: str) -> str:
            if version is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
        monkeypatch.setattr(importlib.metadata, "version", found)

    return install


@pytest.mark.parametrize("version", ["0.0.51", None])
def test_another_compiler_is_refused_before_it_starts(libtpu, monkeypatch, version):
    libtpu(version)
    monkeypatch.setattr("subprocess.run", None)
    with pytest.raises(InputError) as error:
        compile_targets([Target("no.such:thing")])
    assert str(error.value) == (
        f"libtpu: expected {KNOWN_LIBTPU[-1]}, whose dumped schedules can be read, found "
        f"{version or 'one without a version'}: pip install libtpu=={KNOWN_LIBTPU[-1]}"
    )


def test_the_command_says_so_in_one_line(libtpu, capsys):
    libtpu("0.0.49")
    assert main(["predict"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: libtpu: expected ") and line.count("\n") == 1


def test_a_known_one_is_what_the_extra_installs():
    project = tomllib.loads((Path(kimi.__file__).parents[1] / "pyproject.toml").read_text())
    [pinned] = project["project"]["optional-dependencies"]["tpu"]
    assert pinned.removeprefix("libtpu==") in KNOWN_LIBTPU


def test_files_of_both_passes_go_by_kernel():
    names = [
        "12-decode.1-71-final_bundles.txt", "12-decode.1-64-post-delay-converter.txt",
        "3-lone-64-post-delay-converter.txt", "4-<main>-71-final_bundles.txt", "0.module",
    ]  # fmt: skip
    [(kernel, passes)] = schedule_files(Path("/dump", name) for name in names).items()
    assert kernel == "decode.1"
    flag = next(f for f in dump_flags(Path("/dump"), False) if "pass_label_regex" in f)
    assert all(name in flag for name in passes) and len(passes) == 2
