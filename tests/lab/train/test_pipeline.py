"""The whole way from text to a decoded checkpoint, tiny, through the command line."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from kimi.decoding.schedule import Fixed
from kimi.lab.main import main
from kimi.lab.train import prompts
from kimi.lab.train.corpus import Prose, heldout_prose
from kimi.models import open_model
from tests import waiting

# Compiling is what takes the time, and every program runs a few times only.
ENVIRONMENT = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def pipeline(folder: Path) -> str:
    command = [sys.executable, "-m", "kimi.lab", "train", "--smoke"]
    command += ["--corpus", folder, "--out", folder / "run"]
    done = waiting.run(command, 600, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("pipeline")
    prose = heldout_prose()
    Prose(prose[:100_000], prose[100_000:106_000]).save(folder / "prose.npz")
    return folder, pipeline(folder)


def test_every_step_reports_and_leaves_its_file(made):
    folder, log = made
    names = {path.name for path in (folder / "run").iterdir()}
    assert names == {
        "template", "target.safetensors", "drafter.safetensors", "calibrated.safetensors",
        "checkpoint", "scores.json",
    }  # fmt: skip
    assert "held-out prose 7." in log  # near log 2048: nothing has been learnt
    scores = json.loads((folder / "run" / "scores.json").read_text())
    assert scores["right_answers"] == 0
    assert 1 <= scores["problems_acceptance"] <= 4
    assert abs(scores["prose_nats"] - np.log(2048)) < 0.2


def test_the_decoder_takes_the_steps_that_the_scores_count(made):
    """The exported pair, decoded speculatively, confirms the acceptance of the replay."""
    folder, _ = made
    model = open_model(folder / "run" / "checkpoint")
    decoder = model.decoder(160)
    tokens = steps = 0
    for prompt in prompts.prose_prompts(2):
        out = list(
            decoder.generate(
                prompt, 160 - len(prompt), schedule=Fixed(4), stop_ids=model.tokenizer.stop_ids
            )
        )
        tokens += sum(map(len, out))
        steps += len(out)
    scores = json.loads((folder / "run" / "scores.json").read_text())
    assert tokens / steps == pytest.approx(scores["prose_acceptance"])


def test_a_second_run_goes_on_from_the_files(made):
    folder, _ = made
    run = folder / "run"
    shutil.rmtree(run / "checkpoint")
    log = pipeline(folder)
    assert log.count("is there already") == 4
    assert (run / "checkpoint" / "config.json").exists()


def test_errors_are_one_line(tmp_path, capsys):
    where = [
        "train",
        "--smoke",
        "--corpus",
        str(tmp_path),
        "--out",
        str(tmp_path / "run"),
        "--only",
    ]
    assert main([*where, "calibrate"]) == 2
    assert main([*where, "target", "--seconds", "0"]) == 2
    assert main([*where, "export", "--seconds", "9"]) == 2
    (tmp_path / "file").touch()
    assert main([*where, "export", "--out", str(tmp_path / "file")]) == 2
    lines = capsys.readouterr().err.splitlines()
    expected = (
        "drafter.safetensors: expected tensors of an earlier step",
        "seconds: expected more than 0, found 0",
        "--seconds: expected --only target or --only drafter with it",
        "file: cannot be made a directory",
    )
    for line, part in zip(lines, expected, strict=True):
        assert line.startswith("error: ") and part in line
