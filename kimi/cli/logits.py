"""`logits`: the model's logits for given ids, for comparison with other implementations."""

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np

from kimi.cli.console import check_writable, print_json, working
from kimi.decoding.engine import check_ids
from kimi.errors import InputError
from kimi.models import PRECISIONS, open_target
from kimi.reference.state import initial_state
from kimi.tiny import ASSETS


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--model", default=str(ASSETS), help="folder or hub id (default: small K3)")
    p.add_argument("--ids", required=True, help='token ids, for example "3 10 17"')
    p.add_argument("--dtype", choices=tuple(PRECISIONS), default="float32")
    p.add_argument("--out", required=True, help="the .npy file to write")
    p.add_argument("--json", action="store_true", help="print a summary as JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    out = check_writable(args.out)
    ids = parse_ids(args.ids)
    with working("loading the model"):
        checkpoint, model = open_target(args.model, args.dtype)
    config = checkpoint.config
    check_ids("--ids", ids, config.vocab_size)
    if len(ids) > config.max_position_embeddings:
        raise InputError(
            f"--ids: expected at most {config.max_position_embeddings} (the model's context), "
            f"found {len(ids)}"
        )
    state = initial_state(config, len(ids), model.embed_tokens.precision.stream)

    @jax.jit
    def forward(tokens: jax.Array) -> jax.Array:
        return model.logits(model(tokens, state).hidden)

    with working("computing"):
        result = np.asarray(forward(jnp.asarray(ids, jnp.int32)))
    part = out.with_name(out.name + ".part")
    try:
        with open(part, "wb") as file:  # an interrupted run leaves no half-written result
            np.save(file, result)
        os.replace(part, out)
    except OSError as e:
        raise InputError(f"{out}: cannot be written: {e.strerror}") from None
    if args.json:
        best = result.argmax(-1).tolist()
        print_json({"out": str(out), "shape": list(result.shape), "argmax": best})
    else:
        print(f"{out}: logits {list(result.shape)} float32")


def parse_ids(text: str) -> list[int]:
    """Token ids separated by blanks or commas. Raises InputError naming the bad one."""
    words = text.replace(",", " ").split()
    if not words:
        raise InputError("--ids: expected at least one token id, found none")
    for index, word in enumerate(words):
        if not word.removeprefix("-").isdecimal():
            raise InputError(f"--ids: token {index}: expected an integer, found {word!r}")
    return [int(w) for w in words]
