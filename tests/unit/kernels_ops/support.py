"""Packers of the layouts that kernels read, and float64 helpers, in numpy."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np


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


def nibbles(codes):
    """4-bit codes [K, N] -> [K / 8, N] uint32: nibble j of word row i is input 8 i + j."""
    by_word = np.asarray(codes, np.uint32).reshape(-1, 8, codes.shape[1])
    return jnp.asarray(sum(by_word[:, j] << np.uint32(4 * j) for j in range(8)))


def scale_rows(scale_bytes, rows):
    """Bytes [G, N] -> [blocks * rows, N], zero-padded; rows 8 for MXFP4, 1 for FP8."""
    missing = -len(scale_bytes) % rows
    return np.pad(np.asarray(scale_bytes, np.uint32), ((0, missing), (0, 0)))


def tall(scale_bytes, rows):
    """Byte j of word block i is scale block 4 i + j."""
    m = scale_rows(scale_bytes, rows)
    m = np.pad(m, ((0, -len(m) % (4 * rows)), (0, 0))).reshape(-1, 4, rows, m.shape[1])
    return jnp.asarray(sum(m[:, j] << np.uint32(8 * j) for j in range(4)).reshape(-1, m.shape[-1]))


def wide(scale_bytes, rows):
    """Byte j of word column c is column j N / 4 + c."""
    m = scale_rows(scale_bytes, rows)
    m = m.reshape(len(m), 4, -1)
    return jnp.asarray(sum(m[:, j] << np.uint32(8 * j) for j in range(4)))


def close(actual, expected, tolerance, scale=None):
    """Largest error at most `tolerance` times the largest expected magnitude (or `scale`)."""
    actual, expected = f64(actual), f64(expected)
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    limit = tolerance * (np.abs(expected).max() if scale is None else scale)
    assert np.abs(actual - expected).max() <= limit, np.abs(actual - expected).max() / limit
