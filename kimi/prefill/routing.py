"""Which tokens go to which expert of a rank: pairs sorted by expert, cut into tiles of rows.

All pairs of a token and an expert that it chose lie in one list, sorted by expert, those of other
groups and of dead tokens behind. A tile is up to `TILE_ROWS` consecutive pairs of one expert.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from kimi.prefill.pairs import F32

TILE_ROWS = 64  # rows of a left operand that cost the matrix unit no more than fewer
_SUM_EPS = 1e-20  # added to the sum of the chosen scores


class Routes(NamedTuple):
    """The work of a rank's experts; P pairs, N tiles.

    Attributes:
      tokens: int32 [P], the token of each pair.
      weights: float32 [P].
      expert: int32 [N], position among the rank's experts; of a tile without rows that of the last
        one with rows.
      first, rows: int32 [N], its first pair and how many; none behind the last tile.
      tiles: [] int32, how many have rows, the first ones.
    """

    tokens: Array
    weights: Array
    expert: Array
    first: Array
    rows: Array
    tiles: Array


@jax.named_scope("route")
def choose(logits: Array, bias: Array, count: int, scaling: float) -> tuple[Array, Array]:
    """The experts of every token: ids int32 [T, k], weights float32 [T, k].

    The bias takes part in the choice only; ties go to the lower id.

    Args:
      logits: float32 [T, E].
      bias: float32 [E].
    """
    scores = jax.nn.sigmoid(logits)
    _, ids = lax.top_k(scores + bias, count)
    chosen = jnp.take_along_axis(scores, ids, -1)
    return ids, chosen * (scaling / (chosen.sum(-1, keepdims=True) + _SUM_EPS))


def tile_count(pairs: int, experts: int) -> int:
    """Tiles that so many pairs may need at most."""
    return pairs // TILE_ROWS + min(experts, pairs)


@jax.named_scope("route")
def routes(local: Array, weights: Array, experts: int) -> Routes:
    """Sorts pairs and cuts tiles.

    Args:
      local: int32 [T, k], position of the expert on this rank, or `experts` for a pair that is none
        of its business.
      weights: float32 [T, k].
      experts: of a layer on the rank.
    """
    tokens, chosen = local.shape
    pairs = tokens * chosen
    # Expert and number of the pair as one key: a sort of few operands, and no two are equal.
    key = local.astype(jnp.int32).reshape(-1) * pairs + jnp.arange(pairs, dtype=jnp.int32)
    key, weight = lax.sort((key, weights.astype(F32).reshape(-1)), num_keys=1, is_stable=False)
    expert, token = key // pairs, key % pairs // chosen
    counts = jnp.sum(expert[:, None] == jnp.arange(experts), 0, dtype=jnp.int32)
    starts = jnp.cumsum(counts) - counts
    tiles = (counts + TILE_ROWS - 1) // TILE_ROWS
    stops = jnp.cumsum(tiles)
    number = jnp.arange(tile_count(pairs, experts), dtype=jnp.int32)
    valid = number < stops[-1]
    place = jnp.minimum(number, jnp.maximum(stops[-1] - 1, 0))
    own = jnp.sum(stops[None, :] <= place[:, None], 1, dtype=jnp.int32)
    own = jnp.minimum(own, experts - 1)
    done = (place - (stops - tiles)[own]) * TILE_ROWS
    rows = jnp.where(valid, jnp.minimum(counts[own] - done, TILE_ROWS), 0)
    first = (starts[own] + done).astype(jnp.int32)
    return Routes(token, weight, own, first, rows, stops[-1])
