"""The laboratory's command line."""

from collections.abc import Sequence

from kimi.cli.main import Program, run_commands

PROGRAM = Program(
    "python -m kimi.lab",
    "Predicts the kernels' time on TPU v7, makes the small K3, and measures this machine.",
    "kimi.lab.commands",
    {
        "predict": "compile the decode kernel for TPU v7 without one, and predict its time",
        "bench-load": "measure how fast this machine reads, re-encodes and places weights",
        "bench-start": "measure the time to the first word, of a first run and of one after it",
        "bench-codecs": "measure how fast this machine decodes and re-encodes weights in memory",
        "train": "make the small K3: train, calibrate, export and score",
        "corpus": "make the prose that the small K3 is trained on from Debian packages",
        "train-tokenizer": "make the small K3's vocabulary",
        "write-prompts": "write the generated texts that are shipped",
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code."""
    return run_commands(PROGRAM, argv)
