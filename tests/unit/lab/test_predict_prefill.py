"""Options that do not go with `predict --prefill`."""

import pytest

from kimi.assets import TINY_K3
from kimi.lab.main import main


@pytest.mark.parametrize(
    "options, line",
    [
        (
            ["2048", "--compare"],
            "--prefill: expected no --verify, --compare, --timeline, --costs or --loop with it",
        ),
        (
            ["100"],
            "chunk: expected one of 128, 512, 2048 tokens in a cache of 131072, found 100",
        ),
        (
            ["512", "--context", "384", "--model", str(TINY_K3), "--topology", "tpu7x:2x2x1"],
            "chunk: expected one of 128 tokens in a cache of 384, found 512",
        ),
    ],
)
def test_one_line_says_what_is_wrong(capsys, options, line):
    assert main(["predict", "--prefill", *options]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
