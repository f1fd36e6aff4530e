"""Drawing tokens from logits that stay where they are: divided over ranks.

A token is drawn as the largest sum of its scaled logit and Gumbel noise, which is distributed as
softmax(logits / temperature). The noise of a token depends on the key and its id alone, so that the
same token is drawn whatever the number of ranks. top_k and top_p need the tokens in the order of
their probability: every rank sends its `CANDIDATES` most probable ones, which are all that is kept
unless the distribution is very flat; then, and only then, all logits are moved and sorted.

N is the number of rows, V the vocabulary, v a rank's part of it.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

CANDIDATES = 64  # of a rank and row


@dataclass(frozen=True)
class Logits:
    """A rank's part of the logits.

    Attributes:
      part: float32 [..., v]; rank r has the ids from r v on.
      axis: name of the ranks' axis, None where there is one rank.
    """

    part: Array
    axis: str | None = None

    def gather(self, *arrays: Array) -> tuple[Array, ...]:
        """All ranks' arrays [N, M] of float32 or int32, each [ranks, N, M], in one message."""
        if self.axis is None:
            return tuple(array[None] for array in arrays)
        words = jnp.concatenate([lax.bitcast_convert_type(a, jnp.int32) for a in arrays], -1)
        parts = lax.all_gather(words, self.axis)
        ends = np.cumsum([a.shape[-1] for a in arrays])
        return tuple(
            lax.bitcast_convert_type(parts[..., end - a.shape[-1] : end], a.dtype)
            for a, end in zip(arrays, ends, strict=True)
        )

    @property
    def first(self) -> Array:
        """int32 [], the first id of this rank."""
        rank = jnp.int32(0) if self.axis is None else lax.axis_index(self.axis)
        return rank * self.part.shape[-1]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SampledRows:
    """What sampling says about rows.

    Attributes:
      chance: float32 [N], the probability of the row's draft.
      drawn: int32 [N], a draw.
      redrawn: int32 [N], a draw of a token that is not the draft.
    """

    chance: Array
    drawn: Array
    redrawn: Array


@dataclass(frozen=True)
class _Options:
    """Of every row, [N]; see `sampling.Sampling`."""

    temperature: Array
    top_p: Array
    top_k: Array

    @property
    def filters(self) -> Array:
        """bool [N], whether tokens are left out."""
        return (self.temperature > 0) & ((self.top_p < 1) | (self.top_k > 0))


def sample_rows(
    logits: Logits, drafts: Array, keys: Array, temperature: Array, top_p: Array, top_k: Array
) -> SampledRows:
    """Draws from rows, and gives the probabilities of their drafts.

    Args:
      logits: [N, v] of each rank.
      drafts: int32 [N], a token of each row; -1 for none.
      keys: [N] PRNG keys, each used up.
      temperature: float32 [N]; 0 is greedy.
      top_p: float32 [N], in (0, 1]. The token that crosses top_p is kept, so at least one always
        is; among equal probabilities the lower id goes first. 1 keeps all.
      top_k: int32 [N], tokens to keep at most, before `top_p` is applied; 0 keeps all.
    """
    options = _Options(temperature, top_p, top_k)
    part = logits.part.astype(jnp.float32)
    part = part / jnp.where(temperature > 0, temperature, 1)[:, None]
    scaled = Logits(part, logits.axis)
    rows, best = _from_all(scaled, drafts, keys)
    rows = lax.cond(
        options.filters.any(),
        lambda: _choose(options.filters, _from_most_probable(scaled, drafts, keys, options), rows),
        lambda: rows,
    )
    greedy = SampledRows((drafts == best).astype(jnp.float32), best, best)
    return _choose(temperature > 0, rows, greedy)


def _choose(condition: Array, one: SampledRows, other: SampledRows) -> SampledRows:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def gumbel(keys: Array, ids: Array) -> Array:
    """Gumbel noise of tokens.

    Args:
      keys: [N].
      ids: int32 [N, M].

    Returns: float32 [N, M], that depends on key and id alone.
    """
    words = jax.vmap(
        lambda key, row: jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i))[0])(row)
    )(keys, ids)
    # 23 bits, and half a step so that neither 0 nor 1 occurs.
    uniform = ((words >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
    return -jnp.log(-jnp.log(uniform))


def _from_all(logits: Logits, drafts: Array, keys: Array) -> tuple[SampledRows, Array]:
    """Rows that leave no token out; and the most probable token of each, int32 [N]."""
    part, first = logits.part, logits.first
    ids = jnp.broadcast_to(first + jnp.arange(part.shape[-1]), part.shape)
    is_draft = ids == drafts[:, None]
    noisy = part + gumbel(keys, ids)
    largest = part.max(-1)
    # Of each rank: sums, the draft's logit if it is here, and the winners of three contests.
    total = jnp.exp(part - largest[:, None]).sum(-1)
    draft = jnp.where(is_draft, part, -jnp.inf).max(-1)
    contests = (part, noisy, jnp.where(is_draft, -jnp.inf, noisy))
    places = [first + jnp.argmax(contest, -1) for contest in contests]
    sums, values, winners = logits.gather(
        jnp.stack([total, draft], -1),
        jnp.stack([contest.max(-1) for contest in contests], -1),
        jnp.stack(places, -1).astype(jnp.int32),
    )
    # On equal values the lower rank wins, which has the lower ids.
    winners = jnp.take_along_axis(winners, jnp.argmax(values, 0)[None], 0)[0]
    best, drawn, redrawn = winners[:, 0], winners[:, 1], winners[:, 2]
    peak = values[..., 0].max(0)
    normaliser = (sums[..., 0] * jnp.exp(values[..., 0] - peak)).sum(0)
    chance = jnp.exp(sums[..., 1].max(0) - peak) / normaliser
    return SampledRows(chance, drawn, redrawn), best


def _from_most_probable(
    logits: Logits, drafts: Array, keys: Array, options: _Options
) -> SampledRows:
    """Rows that keep the most probable tokens."""
    part = logits.part
    count = min(CANDIDATES, part.shape[-1])
    values, places = lax.top_k(part, count)
    sums = jnp.exp(part - values[:, :1]).sum(-1, keepdims=True)
    values, ids, sums = logits.gather(values, places.astype(jnp.int32) + logits.first, sums)
    largest = values[..., 0].max(0)
    total = (sums[..., 0] * jnp.exp(values[..., 0] - largest)).sum(0)

    def rows(values: Array, ids: Array) -> tuple[SampledRows, Array]:
        """Of tokens [N, M], the most probable ones there are; and the least value that is kept."""
        descending, ids = lax.sort((-values, ids), num_keys=2)
        values, place = -descending, jnp.arange(values.shape[-1])
        top_k, top_p = options.top_k[:, None], options.top_p[:, None]
        among = (place < top_k) | (top_k == 0)
        weights = jnp.where(among, jnp.exp(values - largest[:, None]), 0)
        whole = jnp.where(options.top_k > 0, weights.sum(-1), total)[:, None]
        below = jnp.cumsum(weights, -1) - weights < top_p * whole
        # Rounded sums may reach the whole too early, and a top_p may round to 0.
        kept = among & (below | (top_p >= 1) | (place == 0))
        weights = jnp.where(kept, weights, 0)
        is_draft = ids == drafts[:, None]
        chance = jnp.where(is_draft, weights, 0).sum(-1) / weights.sum(-1)
        noisy = jnp.where(kept, values + gumbel(keys, ids), -jnp.inf)
        drawn, redrawn = (
            jnp.take_along_axis(ids, jnp.argmax(contest, -1)[:, None], -1)[:, 0]
            for contest in (noisy, jnp.where(is_draft, -jnp.inf, noisy))
        )
        least = jnp.where(kept, values, jnp.inf).min(-1)
        return SampledRows(chance, drawn, redrawn), least

    def flat(x: Array) -> Array:
        return jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1)

    found, least = rows(flat(values), flat(ids))
    # Above the largest of what ranks did not send, the candidates are complete.
    complete = (least > values[..., -1].max(0)) | ~options.filters
    if count == part.shape[-1]:
        return found

    def from_whole() -> SampledRows:
        whole = flat(logits.gather(part)[0])
        every = jnp.broadcast_to(jnp.arange(whole.shape[-1], dtype=jnp.int32), whole.shape)
        return rows(whole, every)[0]

    return lax.cond(complete.all(), lambda: found, from_whole)
