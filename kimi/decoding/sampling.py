"""How the next token is chosen from logits."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from kimi.errors import InputError

SEED_LIMIT = 2**31


@dataclass(frozen=True)
class Sampling:
    """A sampling method.

    Attributes:
      temperature: 0 is greedy; otherwise logits are divided by it. At most 100.
      top_p: keep the most probable tokens until their probability reaches top_p, in (0, 1].
      seed: of the pseudo-random choices, 0 .. 2^31 - 1; the same seed repeats the same output.

    Raises:
      InputError: a value out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise InputError(
                f"temperature: expected a number from 0 (greedy) to 100, found {self.temperature}"
            )
        if 0 < self.temperature < 1e-3:
            raise InputError(
                f"temperature: expected 0 (greedy) or at least 0.001, found {self.temperature}"
            )
        if not 0 < self.top_p <= 1:  # also refuses NaN
            raise InputError(f"top_p: expected a number above 0 and up to 1, found {self.top_p}")
        if not 0 <= self.seed < SEED_LIMIT:
            raise InputError(f"seed: expected an integer from 0 to 2^31 - 1, found {self.seed}")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0


def distribution(logits: Array, temperature: Array | float, top_p: Array | float) -> Array:
    """The probabilities that tokens are drawn from.

    Args:
      logits: [..., V] float32.
      temperature: above 0.
      top_p: in (0, 1]. The token that crosses top_p is kept, so at least one always is; among
        equal probabilities the lower id goes first.

    Returns: [..., V] float32, summing to 1.
    """
    p = jax.nn.softmax(logits.astype(jnp.float32) / temperature, -1)
    order = jnp.argsort(-p, axis=-1, stable=True)
    ranked = jnp.take_along_axis(p, order, -1)
    kept = jnp.cumsum(ranked, -1) - ranked < top_p
    rank = jnp.argsort(order, axis=-1)
    p = jnp.where(jnp.take_along_axis(kept, rank, -1), p, 0)
    return p / p.sum(-1, keepdims=True)
