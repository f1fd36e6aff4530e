"""Target and drafter as they will be decoded (float32), for calibration and scores."""

import random
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kimi.lab.train import dialogue, problems
from kimi.lab.train.generation import Generator, Sequences
from kimi.lab.train.prompts import PROSE_TOKENS
from kimi.lab.train.replay import Drafting, Replay, replay
from kimi.lab.train.run import Run
from kimi.lab.train.weights import load_model, read_tensors
from kimi.reference.draft import Dspark
from kimi.reference.loading import drafter_template, target_template, weights_of
from kimi.reference.numerics import FLOAT32
from kimi.text.chat import encode_chat

_CALIBRATION_SEED = 555
# Between the pieces of prose that `kimi.lab.train.prompts` starts from, and clear of them.
_PROSE_OFFSET, _PROSE_MARGIN = 1700, 3000


class Judge:
    """The exact models of a run; compiled once for all sets of prompts.

    Args:
      run: with `target_file` written.
    """

    def __init__(self, run: Run):
        config, draft_config, sizes = run.config, run.draft_config, run.recipe.scores
        self.run = run
        self.target = target_template(config, FLOAT32)
        self.weights = weights_of(load_model(read_tensors(run.target_file), config))
        pad = run.tokenizer.special.pad
        self._generate = Generator(self.target, config, run.tokenizer.stop_ids, pad)
        drafter = drafter_template(draft_config, FLOAT32)
        self._draft = Drafting(self.target, config, drafter, draft_config)
        self._batch, self._tokens = sizes.prompts, sizes.tokens

    def answer(self, prompts: Sequence[Sequence[int]]) -> Sequences:
        """Greedy continuations of a multiple of `ScoreRecipe.prompts` prompts."""
        parts = [
            self._generate(self.weights, prompts[at : at + self._batch], self._tokens)
            for at in range(0, len(prompts), self._batch)
        ]
        return Sequences(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def replay(self, drafter: Dspark, prompts: Sequence[Sequence[int]]) -> Replay:
        """How the drafter fares on the greedy continuations of prompts."""
        sequences = self.answer(prompts)
        return replay(sequences, self._draft(self.weights, weights_of(drafter), sequences.ids))


@lru_cache(maxsize=1)
def judge_of(run: Run) -> Judge:
    """The judge of a run: the steps of one process share its compiled programs."""
    return Judge(run)


def calibration_prompts(run: Run) -> list[list[list[int]]]:
    """Problems, story requests and prose that neither training nor the scores use, by kind.

    They come from the same generators and the same held-out texts as those of the scores, so a
    calibration looks better there than it would on other text.
    """
    count, tokenizer = run.recipe.scores.prompts, run.tokenizer
    rng = random.Random(_CALIBRATION_SEED)
    asked = [problems.sample(rng, held_out=True, two_step=True) for _ in range(count)]
    questions = [
        encode_chat(
            [{"role": "user", "content": problem.question}],
            tokenizer,
            thinking="max" if i % 2 else "off",
        )
        for i, problem in enumerate(asked)
    ]
    stories = [
        dialogue.encode_prompt(dialogue.sample(rng, kind="story"), tokenizer) for _ in range(count)
    ]
    val = run.prose.val
    starts = np.linspace(0, len(val) - _PROSE_MARGIN, count).astype(int) + _PROSE_OFFSET
    prose = [val[start : start + PROSE_TOKENS].tolist() for start in starts]
    return [questions, stories, prose]
