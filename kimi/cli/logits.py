"""`logits`: computes the logits of token ids, to compare with other implementations."""

import argparse

import numpy as np

from kimi.cli.console import print_json, working
from kimi.cli.generate import add_model_options, open_engine
from kimi.cli.options import integer
from kimi.decoding.checks import check_ids
from kimi.errors import InputError
from kimi.files import check_writable, writing


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model_options(p, drafter=False)
    p.add_argument("--ids", required=True, help='token ids, for example "3 10 17"')
    p.add_argument("--out", required=True, help="the .npy file to write")
    p.add_argument("--json", action="store_true", help="print a summary as JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    out = check_writable(args.out)
    ids = parse_ids(args.ids)
    with working("loading the model"):
        engine = open_engine(args, draft=False)
    config = engine.config
    check_ids("--ids", ids, config.vocab_size)
    if len(ids) > config.max_position_embeddings:
        raise InputError(
            f"--ids: expected at most {config.max_position_embeddings} (the model's context), "
            f"found {len(ids)}"
        )
    with working("computing"):
        result = engine.logits(ids)
    with writing(out) as file:
        np.save(file, result)
    if args.json:
        best = result.argmax(-1).tolist()
        print_json({"out": str(out), "shape": list(result.shape), "argmax": best})
    else:
        print(f"{out}: logits {list(result.shape)} float32")


def parse_ids(text: str) -> list[int]:
    """Token ids separated by spaces or commas. Raises InputError naming the invalid one."""
    words = text.replace(",", " ").split()
    if not words:
        raise InputError("--ids: expected at least one token id, found none")
    ids = []
    for index, word in enumerate(words):
        try:
            ids.append(integer()(word))
        except argparse.ArgumentTypeError as e:
            raise InputError(f"--ids: token {index}: {e}") from None
    return ids
