"""The drafter's context of a prompt, against the reference; one rank."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.kernels.draft.layout import DraftLayout, DraftWeights
from kimi.kernels.draft.plan import DraftPlan, default_settings
from kimi.kernels.mesh import Mesh
from kimi.prefill.drafter import extend as extend_cache
from kimi.prefill.layer import Span
from tests.interpret.draft_oracle import golden_drafter, golden_oracle


def context(window, capacity, parts):
    """Extends a context by so many tokens at a time, in rows of 256, beside the reference."""
    name = "dspark_sliding" if window else "dspark_full"
    changes = {"sliding_window": window} if window else {}
    config, target, tensors = golden_drafter(name, **changes)
    layout = DraftLayout(config, target, Mesh(1))
    plan = DraftPlan(layout, default_settings(layout, capacity))
    packed, oracle = layout.pack(tensors, 0), golden_oracle(config, tensors, capacity)
    extend = jax.jit(
        lambda dense, vectors, ring, rows, *span: extend_cache(
            plan, DraftWeights(dense, vectors, None, None, None), ring, rows, Span(*span)
        )
    )
    weights = jnp.asarray(packed.dense), jnp.asarray(packed.vectors)
    rng = np.random.default_rng(0)
    ring, done = jnp.full(plan.cache.shape, 0xFFFFFFFF, jnp.uint32), 0  # NaN
    for count in parts:
        taps = rng.standard_normal((256, config.tap_width), np.float32)
        oracle.extend(taps[:count])
        taps[count:] = np.nan
        rows = taps.reshape(256, -1, config.hidden_size).swapaxes(0, 1)
        ring = extend(*weights, ring, jnp.asarray(rows), jnp.int32(done), jnp.int32(count))
        done += count
    oracle.check_context(SimpleNamespace(plan=plan, context=ring))


@pytest.mark.parametrize("parts", [[1], [128, 3], [0, 200, 256, 7], [256, 256, 256]])
def test_with_a_window(parts):
    """Rows behind the last one, and slots that hold nothing, are NaN; the ring wraps inside."""
    context(200, 0, parts)


def test_without_a_window():
    context(None, 600, [256, 1, 256])
