"""Drafted decoding as a pure function under your own `jax.jit`, end to end.

    .venv/bin/python scripts/example_decode.py "What is 3 * 7 - 5?"

Runs the kernels: on a TPU, or interpreted elsewhere, which takes minutes to compile and about a
second a step. `engine.generate` does the same, with checks, statistics and text.
"""

import sys
from collections.abc import Iterator, Sequence

import kimi  # before jax: it settles the environment

# isort: split
import jax

from kimi.decoding.function import DecodeFunction

PROMPT = "Tom has 3 apples and buys 4 more. How many has he now?"
MAX_TOKENS = 64


def decoded(
    decode: DecodeFunction, prompt: Sequence[int], max_tokens: int, stop_ids: frozenset[int]
) -> Iterator[list[int]]:
    """Yields the new token ids of every call, until a stop id or `max_tokens`."""
    run = jax.jit(decode, donate_argnums=1)  # (weights, state, request) -> (state, Steps)
    state, left, steps, finished = decode.start(prompt), max_tokens, 0, False
    while not finished:
        request = decode.request(left, stop_ids=stop_ids, before=steps)
        state, done = run(decode.weights, state, request)  # the old state was donated
        ids, finished = decode.tokens(done), bool(done.finished.all())
        left, steps = left - len(ids), steps + int(done.count)
        yield ids


def main(text: str = PROMPT) -> None:
    """Prints the answer of the small K3."""
    engine = kimi.load(backend="kernel")
    prompt, stop_ids = engine.encode(text), engine.tokenizer.stop_ids
    decode = engine.decode_function(len(prompt) + MAX_TOKENS, steps=4)
    ids = [i for new in decoded(decode, prompt, MAX_TOKENS, stop_ids) for i in new]
    print(engine.tokenizer.decode([i for i in ids if i not in stop_ids]))


if __name__ == "__main__":
    main(*sys.argv[1:2])
