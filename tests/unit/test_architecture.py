"""Imports go one way, and the repository stays a house that others can live in."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import kimi
from kimi.errors import KimiError
from kimi.jax_private import private

ROOT = Path(kimi.__file__).parent
# A part may import the parts before it, and itself.
ORDER = (
    "_version", "errors", "aliases", "assets", "values", "process", "progress", "startup",
    "jax_private", "program_cache", "files", "fields", "config", "codecs", "activation",
    "checkpoint", "text", "kernels", "prefill", "loading", "reference", "decoding", "models",
    "runtime", "answer", "conversation", "api", "benchmark", "cli", "tiny", "lab",
)  # fmt: skip
# Of the laboratory.
LAB_PARTS = ("predict", "train", "bench")  # know nothing of each other
LAB_PROGRAM = ("commands", "main", "__init__", "__main__")
MODULES = sorted(ROOT.rglob("*.py"))
MAX_LINES = 420


def part(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name == "kimi" or name.startswith("kimi.")}


@pytest.mark.parametrize("file", MODULES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_go_one_way(file):
    own = file.relative_to(ROOT).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    for name in imports(file):
        if part(name) in ("", "__version__"):
            continue
        assert ORDER.index(part(name)) <= ORDER.index(own), f"{file} imports {name}"


def test_only_the_aliases_name_the_laboratory():
    """It is last in the order, so nothing imports it; and only they may look for it."""
    for file in MODULES:
        if file.is_relative_to(ROOT / "lab") or file == ROOT / "aliases.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.fullmatch(r"kimi\.lab(\.\w+)*", node.value), f"{file}:{node.lineno}"


def test_parts_of_the_laboratory_know_nothing_of_each_other():
    for file in (ROOT / "lab").rglob("*.py"):
        own = file.relative_to(ROOT / "lab").parts[0].removesuffix(".py")
        assert own in LAB_PARTS + LAB_PROGRAM
        for name in imports(file):
            if own in LAB_PARTS and part(name) == "lab":
                assert name.split(".")[2] == own, f"{file} imports {name}"


def test_the_laboratory_is_not_in_the_wheel():
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["kimi"], "exclude": ["/kimi/lab"]}


def test_the_reference_does_not_read_files():
    """The meaning of the model depends on its configuration and on arrays, on nothing else."""
    for file in (ROOT / "reference").glob("*.py"):
        assert {part(n) for n in imports(file)} <= {
            "errors",
            "config",
            "codecs",
            "activation",
            "reference",
        }


@pytest.mark.parametrize("file", MODULES, ids=lambda f: str(f.relative_to(ROOT)))
def test_files_stay_short(file):
    lines = file.read_text().count("\n")
    assert lines <= MAX_LINES, f"{file}: {lines} lines: split it"


@pytest.mark.parametrize("file", MODULES, ids=lambda f: str(f.relative_to(ROOT)))
def test_no_size_of_one_model_is_written_into_the_code(file):
    """93 layers, 896 experts, 7168 hidden: only configurations say so."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            assert node.value not in (93, 896, 7168, 163840), f"{file}:{node.lineno}"


def test_what_jax_does_not_export_is_taken_in_one_place():
    assert not [f for f in MODULES if "from jax._src" in f.read_text()]


def test_what_jax_has_moved_is_named():
    for place in (("nowhere",), ("distributed", "nothing")):
        with pytest.raises(KimiError, match=rf"expected jax._src.{'.'.join(place)}, found none"):
            private(*place)
    assert private("distributed", "global_state") is not None


def undocumented(node: ast.AST) -> list[str]:
    """Names of public classes, functions and methods without a docstring, outside functions."""
    missing = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            if not ast.get_docstring(child):
                missing.append(child.name)
            if isinstance(child, ast.ClassDef):
                missing += undocumented(child)
    return missing


@pytest.mark.parametrize("file", MODULES, ids=lambda f: str(f.relative_to(ROOT)))
def test_public_things_are_documented(file):
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree), f"{file}: no docstring"
    assert not undocumented(tree)
