"""Training rows of generated text: documents laid end to end, each token with a loss weight."""

import random

import numpy as np
from numpy.typing import NDArray

from kimi.lab.train import dialogue, stories
from kimi.text.tokenizer import Tokenizer

ROW_TOKENS = 513
"""Length of a training row: 512 inputs and the last target."""

PROMPT_WEIGHT = 0.2
"""Loss weight of a prompt's tokens; replies and stories have 1."""

FULL_WEIGHT = 255
"""What weight 1 is stored as."""

_STORY_SHARE = 0.2


def rows(
    seed: int,
    count: int,
    tokenizer: Tokenizer,
    *,
    length: int = ROW_TOKENS,
    prompt_weight: float = PROMPT_WEIGHT,
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Pack generated documents: conversations, and one in five a bare story ended by [EOS].

    Every row starts at a document and is cut where it is full; the cut document's rest is dropped,
    so no row begins in the middle of a conversation.

    Args:
      seed: seed of the generators; equal seeds give equal rows.
      count: number of rows.
      tokenizer: vocabulary; its ids must fit 16 bits.
      length: tokens per row.
      prompt_weight: loss weight of prompt tokens, 0 to 1.

    Returns: token ids [count, length] uint16; loss weights [count, length] uint8, where
      `FULL_WEIGHT` stands for 1.
    """
    rng = random.Random(seed)
    tokens = np.empty((count, length), np.uint16)
    weights = np.empty((count, length), np.uint8)
    for row in range(count):
        ids: list[int] = []
        loss: list[int] = []
        while len(ids) < length:
            prompt, target = _document(rng, tokenizer)
            ids += prompt + target
            loss += [int(FULL_WEIGHT * prompt_weight)] * len(prompt) + [FULL_WEIGHT] * len(target)
        tokens[row], weights[row] = ids[:length], loss[:length]
    return tokens, weights


def split_rows(ids: NDArray[np.uint16], length: int, limit: int | None = None) -> NDArray[np.int32]:
    """A text cut into rows [N, length] int32, at most `limit`; a rest shorter than a row is left
    out."""
    count = len(ids) // length
    count = count if limit is None else min(count, limit)
    return ids[: count * length].reshape(count, length).astype(np.int32)


def _document(rng: random.Random, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids a document is conditioned on (none for a bare story) and the ids to be learnt."""
    if rng.random() < _STORY_SHARE:
        return [], [*tokenizer.encode(stories.sample(rng)), tokenizer.special.eos]
    exchange = dialogue.sample(rng)
    return dialogue.encode_prompt(exchange, tokenizer), dialogue.encode_reply(exchange, tokenizer)
