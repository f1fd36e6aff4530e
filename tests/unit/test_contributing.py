"""What CONTRIBUTING says of the code is true, and everyone runs the same checks."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from kimi.cli.main import main

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
CONTRIBUTING = (GITHUB / "CONTRIBUTING.md").read_text()
MOST_BEFORE_THE_KERNEL = 12
NAMED = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", CONTRIBUTING)))
PATHS = sorted(
    set(re.findall(r"`((?:kimi|tests|scripts|eval|\.github|\.ci)/[\w./]+)[`:]", CONTRIBUTING))
)


@cache
def definitions(path: str) -> dict[str, ast.AST]:
    """Functions, classes, methods and module variables of a file, by their dotted names."""
    found: dict[str, ast.AST] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[prefix + node.name] = node
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update({prefix + t.id: node for t in targets if isinstance(t, ast.Name)})

    collect(ast.parse((ROOT / path).read_text()).body, "")
    return found


def identifiers(node: ast.AST) -> set[str]:
    """Names and attributes that code uses."""
    inside = list(ast.walk(node))
    names = {n.id for n in inside if isinstance(n, ast.Name)}
    return names | {n.attr for n in inside if isinstance(n, ast.Attribute)}


def first_walk(text: str) -> list[tuple[str, str]]:
    """The functions that the numbered lines of the first walk begin with."""
    walk = text.partition("## Walks")[2].partition("\n### ")[2].partition("\n### ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py):([\w.]+)`", walk, re.MULTILINE)


def broken_links(steps: list[tuple[str, str]]) -> list[str]:
    """Steps that neither they nor their class make use of the next one."""
    broken = []
    for (path, name), (_, following) in zip(steps, steps[1:], strict=False):
        found = definitions(path)
        used = identifiers(found[name]) | identifiers(found[name.rpartition(".")[0] or name])
        if following.rpartition(".")[2] not in used:
            broken.append(f"{path}:{name} does not call {following}")
    return broken


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda value: value)
def test_what_is_named_exists(path, name):
    assert name in definitions(path), f"CONTRIBUTING.md: no {name} in {path}"


def test_paths_exist():
    assert not [path for path in PATHS if not (ROOT / path).exists()]


def test_a_token_goes_the_way_that_is_told():
    steps = first_walk(CONTRIBUTING)
    assert 2 < len(steps) <= MOST_BEFORE_THE_KERNEL
    assert not broken_links(steps)
    assert broken_links([*steps[:2], steps[-1]]), "a walk with a gap is noticed"


def test_continuous_integration_runs_the_script():
    workflow = yaml.safe_load((GITHUB / "workflows" / "test.yml").read_text())
    commands = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert commands == ["bash scripts/test.sh"]
    assert commands[0] in (ROOT / ".ci" / "run").read_text()


def test_hooks_are_checks_of_the_script():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    script = (ROOT / "scripts" / "test.sh").read_text()
    for hook in (hook for repo in config["repos"] for hook in repo["hooks"]):
        assert hook["entry"].replace(".venv/bin/python", '"$PYTHON"') in script


def test_a_report_has_what_doctor_says(capsys):
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    label = next(b["attributes"]["label"] for b in form["body"] if "doctor" in str(b))
    assert label.split()[:3] == ["python", "-m", "kimi"]
    with pytest.raises(SystemExit, match="0"):
        main([label.split()[3], "--help"])
    assert label.split()[4] in capsys.readouterr().out


def test_types_are_part_of_the_package():
    assert (ROOT / "kimi" / "py.typed").read_text() == ""
