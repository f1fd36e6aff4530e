"""Tiles, replicated statistics and products that are more exact than one bfloat16 pass."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from kimi.kernels.chip import LANES, SUBLANES

F32, BF16, U32, I32 = jnp.float32, jnp.bfloat16, jnp.uint32, jnp.int32


def iota(shape: tuple[int, ...], axis: int) -> Array:
    """int32 index along `axis`."""
    return lax.broadcasted_iota(I32, shape, axis)


def replicate(column: Array) -> Array:
    """[..., 1] -> [..., 128], the same number on every lane."""
    return jnp.broadcast_to(column, (*column.shape[:-1], LANES))


def side_by_side(parts: Sequence[Array], axis: int = 1) -> Array:
    """The parts joined along an axis; a single one as it is."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def sublane(tile: Array, index: Array) -> Array:
    """Row `index` ([] int32) of a register tile [8, N] -> [1, N]."""
    row = tile[:1]
    for i in range(1, SUBLANES):
        row = jnp.where(index == i, tile[i : i + 1], row)
    return row


def spread(stat: Array, width: int) -> Array:
    """Lane-replicated [..., 128] -> [..., width]: the same registers again, no instruction."""
    copies = -(-width // LANES)
    return jnp.concatenate([stat] * copies, -1)[..., :width]


def row_total(x: Array) -> Array:
    """Sum over all axes but the first, lane-replicated.

    [R, D] -> [R, 128]; [1, S, L] -> [1, 1, 128].

    Numerics: float32, in the order of the reduction unit.
    """
    if x.ndim == 3:
        x = jnp.sum(x, -2, keepdims=True)
    return replicate(jnp.sum(x, -1, keepdims=True))


def pad_lanes(x: Array, multiple: int, fill: float) -> Array:
    """[R, N] -> [R, N up to a multiple], with `fill` behind; x itself if it fits."""
    missing = -x.shape[-1] % multiple
    if not missing:
        return x
    return jnp.concatenate([x, jnp.full((x.shape[0], missing), fill, x.dtype)], -1)


def fence(tiles: list[Array]) -> list[Array]:
    """The tiles themselves; on a CPU, where XLA must not fuse across.

    In a sorting network every value has two readers, and XLA's CPU backend would fuse and recompute
    them level by level: a compile time that doubles with every level.
    """
    return lax.platform_dependent(tiles, cpu=lax.optimization_barrier, default=lambda x: x)


def split(x: Array) -> tuple[Array, Array]:
    """float32 -> (high, low) bfloat16 with high + low = x up to 2^-16 |x|."""
    high = x.astype(BF16)
    return high, (x - high.astype(F32)).astype(BF16)


def split3(x: Array) -> tuple[Array, Array, Array]:
    """float32 -> three float32 parts that bfloat16 holds exactly; their sum is x exactly.

    3 x 8 bits of mantissa are the 24 of float32, for |x| above 2^-110.
    """
    high = x.astype(BF16).astype(F32)
    middle = (x - high).astype(BF16).astype(F32)
    return high, middle, x - high - middle


def dot_nt(a: Array, b: Array) -> Array:
    """a [M, K] times b [N, K] transposed -> [M, N] float32; operands as they are."""
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=F32)


def dot(a: Array, b: Array) -> Array:
    """a [M, K] times b [K, N] -> [M, N] float32; operands as they are."""
    return jnp.dot(a, b, preferred_element_type=F32)


def product_nt(a: Array, b: Array) -> Array:
    """a [M, K] times b [N, K] transposed for float32 operands, three bfloat16 passes.

    Numerics: the product of the two low parts is left out; error at most 3 * 2^-16 of sum |a| |b|.
    """
    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    both = dot_nt(jnp.concatenate([a_high, a_low], 0), b_high)
    return both[: a.shape[0]] + both[a.shape[0] :] + dot_nt(a_high, b_low)


def outer_sum(a: Array, b: Array) -> Array:
    """sum_r a[r] b[r]^T of float32 operands: a [R, M], b [R, N] -> [M, N] float32.

    Numerics: as `product_nt`; its three passes are stacked along the contraction, which is free.
    """
    (a_high, a_low), (b_high, b_low) = ([t.astype(F32) for t in split(x)] for x in (a, b))
    left = jnp.concatenate([a_high, a_high, a_low], 0).astype(BF16)
    right = jnp.concatenate([b_high, b_low, b_high], 0).astype(BF16)
    return lax.dot_general(left, right, (((0,), (0,)), ((), ())), preferred_element_type=F32)
