"""Compiled functions of a model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from flax import nnx


def compiled(method: Callable[..., Any], module: nnx.Module) -> Callable[..., Any]:
    """`jax.jit(partial(method, module))`, with the weights as arguments.

    As constants they would be part of the program: of its key and of what is kept of it, which
    takes three times as long as compiling it.
    """
    graph, weights = nnx.split(module)

    @jax.jit
    def run(weights: nnx.State, *arguments: Any) -> Any:
        return method(nnx.merge(graph, weights), *arguments)

    return partial(run, weights)
