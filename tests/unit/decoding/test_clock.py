"""Compiling is told apart from the time of the work."""

import time

import jax
import jax.numpy as jnp

from kimi.decoding import clock
from kimi.decoding.clock import Lap


def test_spans_inside_others_count_once():
    spans = clock._Compiling()
    for start, end in [(0, 1), (3, 4), (2, 5), (6, 7)]:
        spans.add(start, end)
    assert spans.seconds == 5 and spans.spans == [(0, 1), (2, 5), (6, 7)]


def test_a_lap_leaves_out_what_compiles():
    """A program in a program, which takes a while to trace, and then a call that only runs."""

    @jax.jit
    def inner(x):
        time.sleep(0.2)
        return x + 1

    @jax.jit
    def outer(x):
        return inner(x) * 2

    x = jnp.arange(3.0)
    begin = time.perf_counter()
    lap = Lap()
    jax.block_until_ready(outer(x))
    seconds, compiled = lap.end()
    assert 0.2 < compiled < seconds + compiled <= time.perf_counter() - begin
    assert seconds < compiled
    lap = Lap()
    jax.block_until_ready(outer(x))
    assert lap.end()[1] == 0
