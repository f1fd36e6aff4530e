"""Checks of what is asked for, the same for every backend."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

import jax
import numpy as np

from kimi.decoding.requests import MAX_SEQUENCES, STOP_IDS
from kimi.decoding.sampling import Sampling
from kimi.errors import InputError, RoomError
from kimi.values import integer, shown


def check_request(
    prompt: Sequence[int], max_tokens: int, vocab_size: int, capacity: int
) -> tuple[list[int], int]:
    """The prompt and the number of tokens to generate as Python integers.

    Raises:
      InputError: no such prompt or number.
      RoomError: more than the context holds.
    """
    ids = check_ids("prompt", prompt, vocab_size)
    if not ids:
        raise InputError("prompt: expected at least one token, found none")
    max_tokens = integer("max tokens", max_tokens, 1)
    if len(ids) + max_tokens > capacity:
        raise RoomError(
            f"prompt: {len(ids)} tokens and {max_tokens} to generate: expected at most "
            f"{capacity} in all (the context), found {len(ids) + max_tokens}"
        )
    return ids, max_tokens


def check_ids(what: str, ids: Iterable[int], vocab_size: int) -> list[int]:
    """Token ids as Python integers; `what` says whose they are.

    Raises:
      InputError: no ids, or the first one outside the vocabulary.
    """
    listed = ids.tolist() if isinstance(ids, np.ndarray | jax.Array) else ids
    if isinstance(listed, str | bytes | bytearray | memoryview | Mapping | Set) or not isinstance(
        listed, Iterable
    ):
        raise InputError(f"{what}: expected token ids, found {shown(ids)}")
    checked = []
    for index, token in enumerate(listed):
        value = token if type(token) is int else integer(f"{what}: token {index}", token)
        if not 0 <= value < vocab_size:
            raise InputError(
                f"{what}: token {index}: expected an id from 0 to {vocab_size - 1}, found "
                f"{shown(value)}"
            )
        checked.append(value)
    return checked


def check_stop_ids(stop_ids: Iterable[int], vocab_size: int) -> frozenset[int]:
    """Ids that end a generation. Raises InputError, see `check_ids`, or if there are too many."""
    listed = list(stop_ids) if isinstance(stop_ids, Set) else stop_ids
    checked = frozenset(check_ids("stop ids", listed, vocab_size))
    if len(checked) > STOP_IDS:
        raise InputError(f"stop ids: expected at most {STOP_IDS}, found {len(checked)}")
    return checked


def check_batch(count: int, sampling: Sampling) -> list[Sampling]:
    """The sampling of each of `count` sequences: sequence i draws with seed + i.

    Raises:
      InputError: not 1 to 8 sequences, or no seed for the last one.
    """
    if not 1 <= count <= MAX_SEQUENCES:
        raise InputError(f"prompts: expected 1 to {MAX_SEQUENCES}, found {count}")
    return [replace(sampling, seed=sampling.seed + i) for i in range(count)]
