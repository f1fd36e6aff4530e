"""Packers of the layouts that kernels read, and float64 helpers, in numpy."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from kimi.kernels.ops import experts


def f64(x):
    """Any array as float64."""
    return np.asarray(x).astype(np.float64)


def bf16(x):
    """Rounded to bfloat16, as float32."""
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def words(x):
    """[2r, N] of bfloat16 values -> [r, N] uint32: even rows in the low halves."""
    bits = np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)
    return jnp.asarray(bits[..., 0::2, :] | bits[..., 1::2, :] << 16)


def replicate(x):
    """[R] -> [R, 128]."""
    return jnp.asarray(np.repeat(np.asarray(x)[:, None], 128, 1))


def vector(x):
    """[..., n] -> [..., n / 128, 128]."""
    return jnp.asarray(x, jnp.float32).reshape(*x.shape[:-1], -1, 128)


def _padded(x, *multiples):
    return np.pad(x, [(0, -size % m) for size, m in zip(x.shape, multiples, strict=True)])


def coded(stored, scale_bytes):
    """`experts.Coded` of one matrix.

    Args:
      stored: [N, bytes] uint8, inputs along the bytes as in the checkpoint (MXFP4) or one per byte.
      scale_bytes: [N, scales] uint8.
    """
    full = _padded(stored, 128, 32)
    words = np.ascontiguousarray(full).view("<u4").T  # [K / per word, N]
    panels = words.reshape(words.shape[0], -1, 128).swapaxes(0, 1)
    scales = _padded(scale_bytes, 128, 8).reshape(len(panels), 128, -1, 8)
    chunks = scales.transpose(2, 0, 3, 1).reshape(-1, 8, 128)  # group by group, panel by panel
    blocks = _padded(chunks, 4, 8, 128).reshape(-1, 4, 8, 128).astype(np.uint32)
    packed = sum(blocks[:, j] << np.uint32(8 * j) for j in range(4)).reshape(-1, 128)
    return experts.Coded(jnp.asarray(panels.astype(np.uint32)), jnp.asarray(packed))


def close(actual, expected, tolerance, scale=None):
    """Largest error at most `tolerance` times the largest expected magnitude (or `scale`)."""
    actual, expected = f64(actual), f64(expected)
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    limit = tolerance * (np.abs(expected).max() if scale is None else scale)
    assert np.abs(actual - expected).max() <= limit, np.abs(actual - expected).max() / limit
