"""How the next token is chosen from logits."""

import math
from dataclasses import dataclass
from typing import TypedDict

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from kimi.errors import InputError
from kimi.values import integer, number, shown

INT32_MAX = 2**31 - 1


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling` as keywords."""

    temperature: float
    top_p: float
    seed: int
    top_k: int


@dataclass(frozen=True)
class Sampling:
    """A sampling method.

    Attributes:
      temperature: 0 is greedy; otherwise logits are divided by it. At most 100.
      top_p: keep the most probable tokens until their probability reaches top_p, in (0, 1]; 1 keeps
        all.
      seed: of the pseudo-random choices, 0 .. 2^31 - 1; the same seed repeats the same output.
      top_k: keep at most so many tokens, the most probable ones, and apply `top_p` to what their
        probabilities are among themselves; 0 keeps all. At most 2^31 - 1.

    Raises:
      InputError: a value of another type or out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0

    def __post_init__(self) -> None:
        temperature = number("temperature", self.temperature)
        if not (math.isfinite(temperature) and 0 <= temperature <= 100):
            found = shown(self.temperature)
            raise InputError(
                f"temperature: expected a number from 0 (greedy) to 100, found {found}"
            )
        if 0 < temperature < 1e-3:
            raise InputError(
                f"temperature: expected 0 (greedy) or at least 0.001, found {temperature}"
            )
        top_p = number("top_p", self.top_p)
        if not 0 < top_p <= 1:  # also refuses NaN
            found = shown(self.top_p)
            raise InputError(f"top_p: expected a number above 0 and up to 1, found {found}")
        for name, value in (("temperature", temperature), ("top_p", top_p)):
            object.__setattr__(self, name, value)
        for name in ("seed", "top_k"):
            value = integer(name, getattr(self, name), 0, INT32_MAX)
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0


def distribution(
    logits: Array, temperature: Array | float, top_p: Array | float, top_k: Array | int = 0
) -> Array:
    """The probabilities that tokens are drawn from: the definition.

    Programs draw by `drawing.sample_rows`, which never forms them all; tests compare the two.

    Args:
      logits: [..., V] float32.
      temperature: [] or [B] for logits [B, ..., V]. 0 is greedy: all probability is at the largest
        logit, the first one among equals.
      top_p: likewise, in (0, 1]. The token that crosses top_p is kept, so at least one always is;
        among equal probabilities the lower id goes first. 1 keeps all.
      top_k: likewise int32, tokens to keep at most, before `top_p` is applied; 0 keeps all.

    Returns: [..., V] float32, summing to 1.
    """

    def each(value: Array | float, dtype: DTypeLike) -> Array:
        found = jnp.asarray(value, dtype)
        return found.reshape(found.shape + (1,) * (logits.ndim - found.ndim))

    temperature, top_p = each(temperature, jnp.float32), each(top_p, jnp.float32)
    top_k, sampled = each(top_k, jnp.int32), temperature > 0
    logits = logits.astype(jnp.float32)
    p = jax.nn.softmax(logits / jnp.where(sampled, temperature, 1), -1)
    filters = sampled & ((top_p < 1) | ((top_k > 0) & (top_k < p.shape[-1])))
    # Sorting a large vocabulary takes longer than the rest: only where something is left out.
    p = lax.cond(filters.any(), _filtered, lambda p, *_: p, p, top_p, top_k)
    best = jnp.argmax(logits, -1, keepdims=True)
    return jnp.where(sampled, p, jnp.arange(p.shape[-1]) == best)


def _filtered(p: Array, top_p: Array, top_k: Array) -> Array:
    """The distribution of the most probable tokens of p [..., V]."""
    order = jnp.argsort(-p, axis=-1, stable=True)
    place = jnp.arange(p.shape[-1])
    among = (place < top_k) | (top_k == 0)
    ranked = jnp.where(among, jnp.take_along_axis(p, order, -1), 0)
    whole = jnp.where(top_k > 0, ranked.sum(-1, keepdims=True), 1)
    below = jnp.cumsum(ranked, -1) - ranked < top_p * whole
    # Rounded sums may reach 1 too early, and a top_p may round to 0.
    kept = among & (below | (top_p >= 1) | (place == 0))
    rank = jnp.argsort(order, axis=-1)
    p = jnp.where(jnp.take_along_axis(kept, rank, -1), p, 0)
    return p / p.sum(-1, keepdims=True)
