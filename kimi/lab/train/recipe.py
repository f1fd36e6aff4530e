"""Every size, rate and time budget of the run that makes the small K3, in one place."""

from dataclasses import dataclass, replace
from typing import Literal

import jax.numpy as jnp

from kimi.errors import InputError
from kimi.reference.numerics import FLOAT32, Precision

MIXED = Precision(jnp.float32, jnp.bfloat16)  # float32 streams, bfloat16 products


@dataclass(frozen=True)
class Budget:
    """When a training loop ends, and its learning rate on the way there.

    The rate rises linearly over `warmup` steps, stays at `peak`, and falls linearly to zero over
    the last `decay` share of the run. Shares are of wall time, so a run ends its decay in time on
    any machine; `steps` bounds runs whose length must not depend on the machine.

    Attributes:
      seconds: wall time of the loop, compilation included.
      peak: highest learning rate.
      decay: share of the run over which the rate falls.
      warmup: steps over which it rises.
      steps: most steps, or None.
    """

    seconds: float
    peak: float
    decay: float
    warmup: int
    steps: int | None = None

    def fraction(self, elapsed: float, step: int) -> float:
        """How much of the run is over: 0 to 1 (or more, once it is)."""
        by_steps = step / self.steps if self.steps else 0.0
        return max(elapsed / self.seconds, by_steps)

    def rate(self, fraction: float, step: int) -> float:
        """The learning rate of `step` (from 0) after `fraction` of the run."""
        falling = max(0.0, 1.0 - fraction) / self.decay
        return self.peak * min(1.0, falling) * min(1.0, (step + 1) / self.warmup)


@dataclass(frozen=True)
class TargetRecipe:
    """How the target is trained.

    Attributes:
      budget: schedule.
      batch: rows of a step, and the share of them that is prose; the others are generated text.
      tokens: inputs of a row (it holds one token more, the last target).
      pool: generated rows to draw from.
      block: steps per compiled call.
      dropout: rate on the residual branches of prose rows, which are few enough to be memorised.
      quantise_from: fraction of the run from which experts are rounded to MXFP4 in the loop.
      weight_decay: on matrices.
      z_loss: weight of the squared log normaliser of the output distribution.
      validation: held-out rows of the loss in the log.
    """

    budget: Budget = Budget(seconds=515, peak=2e-3, decay=0.65, warmup=300)
    batch: int = 48
    prose_share: float = 0.4
    tokens: int = 512
    pool: int = 80_000
    block: int = 25
    dropout: float = 0.1
    quantise_from: float = 0.5
    weight_decay: float = 0.1
    z_loss: float = 1e-4
    validation: int = 96

    @property
    def prose_rows(self) -> int:
        """Prose rows of a batch; they come first."""
        return round(self.batch * self.prose_share)


@dataclass(frozen=True)
class DrafterRecipe:
    """How the drafter is trained, on sequences that the target itself wrote.

    Attributes:
      budget: schedule.
      sequences: sequences written before training, `at_once` at a time, `tokens` long at most.
      chat_share: share of prompts that are conversations; the others are pieces of prose.
      greedy_share: share continued greedily; the others are sampled at temperature 1.
      batch, anchors: sequences of a step and random anchors in each.
      block: steps per compiled call.
      weight_decay: on matrices.
      cross_entropy: weight of the cross-entropy against the target's choice; the divergence from
        its distribution has the rest.
      discount: weight of a row relative to the one before it.
      confidence: weight of the confidence head's loss.
    """

    budget: Budget = Budget(seconds=360, peak=1.5e-3, decay=0.7, warmup=200)
    sequences: int = 24_576
    at_once: int = 2_048
    tokens: int = 320
    chat_share: float = 0.6
    greedy_share: float = 0.7
    batch: int = 64
    anchors: int = 32
    block: int = 20
    weight_decay: float = 0.05
    cross_entropy: float = 0.6
    discount: float = 0.85
    confidence: float = 0.2


@dataclass(frozen=True)
class ScoreRecipe:
    """Sizes of the calibration set and of the scores in the log.

    Attributes:
      prompts: of each kind, both to calibrate the confidence head on and to measure the
        acceptance length of.
      tokens: most tokens of a sequence, prompt included.
      answers: held-out problems to answer, a multiple of `prompts`.
      prose: targets of a row of held-out prose, and `rows` of them at once.
    """

    prompts: int = 40
    tokens: int = 224
    answers: int = 200
    prose: int = 512
    rows: int = 8


@dataclass(frozen=True)
class Recipe:
    """The whole run.

    Attributes:
      shrink: True trains a model with a tenth of the shipped sizes, see `run.small_template`.
      precision: of training and of writing the drafter's sequences.
      workers: most processes that generate text.
      log_every: seconds between log lines of a training loop.
      save_every: seconds between saved states of a training loop.
    """

    target: TargetRecipe = TargetRecipe()
    drafter: DrafterRecipe = DrafterRecipe()
    scores: ScoreRecipe = ScoreRecipe()
    shrink: bool = False
    precision: Precision = MIXED
    workers: int = 16
    log_every: float = 25
    save_every: float = 180

    def lasting(self, what: Literal["target", "drafter"], seconds: float) -> "Recipe":
        """This recipe with another wall time. Raises: InputError unless `seconds` is positive."""
        if not seconds > 0:
            raise InputError(f"seconds: expected more than 0, found {seconds:g}")
        if what == "target":
            budget = replace(self.target.budget, seconds=seconds)
            return replace(self, target=replace(self.target, budget=budget))
        budget = replace(self.drafter.budget, seconds=seconds)
        return replace(self, drafter=replace(self.drafter, budget=budget))


FULL = Recipe()
"""The shipped model: at most 30 minutes on one GPU with 140 GB of memory."""

SMOKE = Recipe(
    target=TargetRecipe(
        budget=Budget(seconds=60, peak=2e-3, decay=0.65, warmup=2, steps=4),
        batch=4,
        tokens=64,
        pool=16,
        block=2,
        validation=2,
    ),
    drafter=DrafterRecipe(
        budget=Budget(seconds=60, peak=1.5e-3, decay=0.7, warmup=2, steps=3),
        sequences=8,
        at_once=2,
        tokens=160,
        batch=2,
        anchors=3,
        block=1,
    ),
    scores=ScoreRecipe(prompts=2, tokens=160, answers=2, prose=64, rows=2),
    shrink=True,
    precision=FLOAT32,  # XLA's CPU backend lacks some of the bfloat16 products
    workers=1,
    log_every=0,
    save_every=0,
)
"""All steps within seconds on two CPU cores: checks the machinery, learns nothing.

Where training and scoring run the same program, they do so in the same sizes: with a compilation
cache it is compiled once.
"""
