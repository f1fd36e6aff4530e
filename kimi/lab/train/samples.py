"""Text for training, made by several processes: packed rows and the prompts of conversations."""

import multiprocessing
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kimi.lab.train import dialogue, packing
from kimi.text.tokenizer import Tokenizer

PARTS = 16
"""Seeds 0..15 each make a part, whatever the number of processes."""

_KINDS: tuple[dialogue.Kind, ...] = ("problem", "story", "talk")
_KIND_SHARES = (0.7, 0.24, 0.06)
_PROSE_PROMPT = (12, 96)  # tokens, least and most


def generated_rows(
    count: int, length: int, template: Path, workers: int
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """`packing.rows` of all seeds: [count, length] tokens and loss weights.

    Args:
      count: rows, a multiple of `PARTS`.
      length: tokens of a row.
      template: folder of the vocabulary.
      workers: most processes.
    """
    parts = _map(partial(_rows, count=count // PARTS, length=length, template=template), workers)
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def conversation_prompts(count: int, template: Path, workers: int) -> list[list[int]]:
    """At least `count` prompts of training conversations."""
    part = partial(_prompts, count=-(-count // PARTS), template=template)
    return sum(_map(part, workers), [])


def mixed_prompts(
    count: int, conversations: Sequence[list[int]], prose: NDArray[np.uint16], chat_share: float
) -> list[list[int]]:
    """Prompts for the target to continue.

    Args:
      count: how many.
      conversations: drawn from in turn.
      prose: training ids; a prompt starts anywhere and is 12 to 96 tokens long.
      chat_share: share of conversations.
    """
    rng = random.Random(1)
    prompts = []
    for i in range(count):
        if rng.random() < chat_share:
            prompts.append(conversations[i % len(conversations)])
        else:
            start = rng.randrange(len(prose) - _PROSE_PROMPT[1])
            prompts.append(prose[start : start + rng.randint(*_PROSE_PROMPT)].tolist())
    return prompts


def padded(
    sequences: Sequence[Sequence[int]], length: int, pad: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Sequences cut or filled up to `length`: ids [B, length], and how many are real [B]."""
    ids = np.full((len(sequences), length), pad, np.int32)
    lengths = np.array([min(len(s), length) for s in sequences], np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence[:length]
    return ids, lengths


def _rows(
    seed: int, count: int, length: int, template: Path
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    return packing.rows(seed, count, Tokenizer.from_dir(template), length=length)


def _prompts(seed: int, count: int, template: Path) -> list[list[int]]:
    rng, tokenizer = random.Random(seed), Tokenizer.from_dir(template)
    kinds = rng.choices(_KINDS, _KIND_SHARES, k=count)
    return [dialogue.encode_prompt(dialogue.sample(rng, kind=k), tokenizer) for k in kinds]


def _map[T](make: Callable[[int], T], workers: int) -> list[T]:
    if workers == 1:
        return [make(seed) for seed in range(PARTS)]
    # Not fork: by now jax runs threads, whose locks a forked child would inherit locked.
    context = multiprocessing.get_context("spawn")
    workers = min(workers, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return list(pool.map(make, range(PARTS)))
