"""Options that do not go with `aot --prefill`."""

import pytest

from kimi.cli.main import main
from kimi.tiny import ASSETS


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
            ["512", "--context", "384", "--model", str(ASSETS), "--topology", "tpu7x:2x2x1"],
            "chunk: expected one of 128 tokens in a cache of 384, found 512",
        ),
    ],
)
def test_one_line_says_what_is_wrong(capsys, options, line):
    assert main(["aot", "--prefill", *options]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
