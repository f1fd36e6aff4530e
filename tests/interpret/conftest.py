"""The small trained K3 on the kernel, one row at a time: what other forms are compared with."""

import jax.numpy as jnp
import numpy as np
import pytest

from kimi.checkpoint import Checkpoint
from kimi.models import Model
from kimi.reference.model import K3
from kimi.reference.state import initial_state
from kimi.text.chat import encode_chat
from tests.interpret.session import Session
from tests.programs import compiled

PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have now?"
STEPS = 64


@pytest.fixture(scope="session")
def tensors(tiny: Model) -> Checkpoint:
    """The checkpoint of the small K3."""
    return Checkpoint.open(tiny.path)


@pytest.fixture(scope="session")
def one_row(tiny, tensors) -> Session:
    """One rank, one row; `run` starts it anew."""
    taps = tiny.runner.drafter.config.aux_hidden_state_layer_ids
    return Session(tiny.config, tensors, taps=taps)


@pytest.fixture(scope="session")
def prompt(tiny) -> list[int]:
    """A word problem as the chat template has it."""
    return encode_chat([{"role": "user", "content": PROMPT}], tiny.tokenizer, thinking="off")


@pytest.fixture(scope="session")
def greedy(tiny, prompt) -> list[int]:
    """The reference's continuation."""
    steps = tiny.decoder(len(prompt) + STEPS).generate(prompt, STEPS)
    return [token for step in steps for token in step]


@pytest.fixture(scope="session")
def forward(tiny, prompt, greedy) -> tuple[np.ndarray, np.ndarray]:
    """The reference on prompt and continuation: logits [T, V], taps [T, taps * D]."""
    tokens = jnp.asarray([*prompt, *greedy[:-1]])
    out = compiled(K3.__call__, tiny.runner.target)(
        tokens, initial_state(tiny.config, len(tokens), jnp.float32)
    )
    taps = out.taps(tiny.runner.drafter.config.aux_hidden_state_layer_ids)
    return np.asarray(tiny.runner.target.logits(out.hidden)), np.asarray(taps)


@pytest.fixture(scope="session")
def expected(one_row, prompt, greedy) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The one-row kernel on prompt and continuation: greedy tokens, logits, taps."""
    return one_row.run([*prompt, *greedy[:-1]])
