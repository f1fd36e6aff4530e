"""The trained small K3: prompts in chunks against token-by-token decoding, on one rank and more."""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.flax import load_file, save_file

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.decoding.schedule import Fixed
from kimi.lab.train.weights import load_model
from kimi.reference.model import K3
from kimi.reference.moe import Router
from kimi.reference.numerics import BFLOAT16
from kimi.reference.state import initial_state
from kimi.runtime.model import place_model
from kimi.text.chat import encode_chat
from tests.interpret.devices import require_devices
from tests.interpret.prefill_model import Decoding
from tests.tolerances import PREFILL_TAPS, PREFILL_TAPS_TYPICAL

pytestmark = pytest.mark.slow  # minutes of compilation: see the README

STEPS = 64
CAPACITY = 384
COUNTS = (127, 128, 129, 130, 257)  # all but the last are read in chunks of 128
# Thought about and answered with certainty: the two best tokens are at least 1 apart in all steps,
# far beyond any rounding. Stories of the small K3 are full of ties.
PROBLEM = (
    "Tom has 3 apples and buys 4 more. Then he gives 2 to Mia. How many apples does he have now?"
)


@pytest.fixture(scope="module")
def text(tiny):
    """A function of a length: a prompt of so many tokens that ends with the problem."""
    messages = [{"role": "user", "content": PROBLEM}]
    asked = encode_chat(messages, tiny.tokenizer, thinking="max")
    found = [t for step in tiny.decoder(len(asked) + STEPS).generate(asked, STEPS) for t in step]

    def of_length(count: int) -> np.ndarray:
        before = ([*asked, *found] * 2)[: count - len(asked)]
        return np.asarray([*before, *asked], np.int32)

    return of_length


def choices(model, config, tokens) -> np.ndarray:
    """The experts that the reference chooses, in order: [layers, tokens, experts of a token]."""
    found, call = [], Router.__call__

    def recording(router, x):
        experts, weights = call(router, x)
        found.append(np.sort(np.asarray(experts)[: len(tokens)]))
        return experts, weights

    padded = jnp.zeros(CAPACITY, jnp.int32).at[: len(tokens)].set(jnp.asarray(tokens))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Router, "__call__", recording)
        K3.__call__(model, padded, initial_state(config, CAPACITY, jnp.float32))
    return np.stack(found)


@pytest.fixture(scope="module")
def rounded(tiny):
    """The reference in the published code's arithmetic."""
    return load_model(tiny.checkpoint, tiny.config, BFLOAT16)


@pytest.fixture(scope="module")
def decided(tiny, tmp_path_factory) -> Checkpoint:
    """The small K3 with experts that no rounding can change: a bias chooses four in every layer."""
    path = tmp_path_factory.mktemp("decided") / "k3"
    shutil.copytree(tiny.path, path)
    layers = 0
    for file in sorted(path.glob("model-*.safetensors")):
        tensors = load_file(file)
        for name in [n for n in tensors if n.endswith("e_score_correction_bias")]:
            layers += 1
            chosen = np.random.default_rng(layers).permutation(len(tensors[name]))[:4]
            tensors[name] = tensors[name].at[chosen].add(10)
        save_file(tensors, file, metadata={"format": "pt"})
    assert layers == 5
    return Checkpoint.open(path)


@pytest.fixture(scope="module", params=[1, 4, 8])
def decoding(request, tiny):
    """On so many ranks."""
    require_devices(request.param)
    target, drafter = Checkpoint.open(tiny.path), DraftCheckpoint.open(TINY_K3 / "dspark")
    return Decoding(place_model(target, drafter, ranks=request.param), CAPACITY)


def context_errors(decoding, one, other) -> np.ndarray:
    """Of every position, relative to the largest value."""
    one, other = decoding.context(one), decoding.context(other)
    return np.abs(one - other).max((0, 1, 2, 4, 5)) / np.abs(other).max()


@pytest.mark.parametrize("count", COUNTS)
def test_equal_to_decoding(decoding, tiny, rounded, text, count):
    """The same 64 greedy tokens, the same number of drafts accepted at every step, and the same
    context of the drafter, behind prompts that end around the borders of chunks.

    Where rounding chooses another expert of a token, its context is another one. It does so for no
    more tokens than the published code's rounding does; `test_context` has none of them.
    """
    tokens, found = text(count), []
    for read_all in (decoding.prefill, decoding.decode):
        state = read_all(tokens)
        found.append(decoding.generate(state, STEPS, Fixed(8)))
    (new, accepted, state), (others, theirs, decoded) = found
    assert new == others
    assert accepted == theirs
    assert sum(accepted) > STEPS / 4, "drafts of the answer are accepted"
    errors = context_errors(decoding, state, decoded)
    assert np.median(errors) <= PREFILL_TAPS_TYPICAL
    read = [*tokens, *new][: int(state.lengths[0])]
    exact, other = (choices(model, tiny.config, read) for model in (tiny.runner.target, rounded))
    differ = (exact != other).any((0, 2))
    assert (errors > PREFILL_TAPS).sum() <= differ[-len(errors) :].sum()


@pytest.mark.parametrize("count", [129, 257])
def test_context(decoding, decided, text, count, monkeypatch):
    """Of every position, where no token's experts are nearly equal."""
    backend, drafter = decoding.backend, DraftCheckpoint.open(TINY_K3 / "dspark")
    ranks = backend.model.layout.mesh.ranks
    monkeypatch.setattr(backend, "weights", place_model(decided, drafter, ranks=ranks).arrays)
    tokens = text(count)
    state = decoding.prefill(tokens)
    # The drafter takes a token's tap in when the next one is decoded.
    decoded = decoding.decode(np.append(tokens, tokens[-1]))
    errors = context_errors(decoding, state, decoded)
    assert len(errors) == count - 1
    assert errors.max() <= PREFILL_TAPS and np.median(errors) <= PREFILL_TAPS_TYPICAL
