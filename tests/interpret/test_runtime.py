"""Decoding on devices with a small random model: the loops, whatever is drafted.

Drafts come from a table here, right and wrong ones, so that every number of accepted rows occurs;
the draft kernel has tests of its own, and `eval/paths.py` runs both together on the small K3.
"""

import runpy
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh as DeviceMesh

from kimi.decoding.backend import Proposal
from kimi.decoding.decoder import Decoder
from kimi.decoding.function import DecodeFunction
from kimi.decoding.loop import choose_rows
from kimi.decoding.requests import no_steps, request, row_counts
from kimi.decoding.sampling import Sampling, distribution
from kimi.decoding.schedule import Adaptive, CostTable, Fixed
from kimi.decoding.stats import Stats
from kimi.errors import InputError, NumericsError
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft.layout import DraftLayout, DraftWeights
from kimi.kernels.layout import Layout, Weights
from kimi.kernels.mesh import default_mesh
from kimi.runtime import backend
from kimi.runtime.backend import BlockBackend, KernelModel
from kimi.runtime.model import DeviceModel
from tests.interpret.session import Session
from tests.interpret.small import small_config, small_tensors
from tests.packing.target import pack
from tests.tolerances import KERNEL_FORMS
from tests.unit.decoding.test_acceptance import follows
from tests.unit.kernels_draft.build import draft_config, random_drafter

CONTEXT, BLOCK, NEW = 256, 4, 20
# No greedy token behind it is a near tie: forms of a step round differently.
PROMPT = [866, 766, 1542, 1580, 964, 1374, 1520]


@pytest.fixture(scope="module")
def config():
    return small_config()


@pytest.fixture(scope="module")
def tensors(config):
    return small_tensors(config)


@pytest.fixture(scope="module")
def truth(config, tensors):
    """Prompt and greedy continuation, by the one-row kernel alone."""
    session, tokens = Session(config, tensors, context=CONTEXT), list(PROMPT)
    for i in range(len(PROMPT) + NEW - 1):
        ids, _, logits = session.step([tokens[i]])
        if i + 1 == len(tokens):
            tokens.append(int(ids[0]))
            second, first = np.sort(logits[0])[-2:]
            assert first - second > KERNEL_FORMS * np.abs(logits).max() / 2
    return tokens


@pytest.fixture(scope="module")
def model(config, tensors):
    drafter = draft_config(
        128, vocab_size=2048, hidden_size=128, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, rank=32, taps=[1, 2, 3],
        block=BLOCK, mask_token_id=7,
    )  # fmt: skip
    layout = Layout(config, default_mesh(config, 1))
    draft_layout = DraftLayout(drafter, config, layout.mesh)
    packed = pack(layout, tensors, 0)
    drafts = draft_layout.pack(random_drafter(drafter), 0)
    return DeviceModel(
        layout,
        Weights(*(jnp.asarray(w)[None] for w in packed)),
        draft_layout,
        DraftWeights(*(jnp.asarray(w)[None] for w in drafts)),
        DeviceMesh(np.array(jax.devices()[:1]), (AXIS,)),
    )


def is_wrong(position):
    """Which positions the table gets wrong."""
    place = position % 11
    return (place == 0) | (place == 2) | (place == 3)


@pytest.fixture(scope="module")
def decoder(model, truth):
    """Drafts behind position p are those of the table, with confidence 0.9, or 0.1 if wrong."""
    table = jnp.asarray(truth + [0] * 16, jnp.int32)

    class TableBackend(BlockBackend):
        def draft(self, weights, state):
            place = state.positions[0] + 1 + jnp.arange(8)
            wrong = is_wrong(place)
            tokens = jnp.where(wrong, (table[place] + 1) % 2048, table[place])
            return state, Proposal(tokens[None], jnp.where(wrong, 0.1, 0.9)[None])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "BlockBackend", TableBackend)
        made = Decoder(KernelModel(model), CONTEXT, steps=3)
        assert made.programs().backend.block == BLOCK
    return made


def drafted(decoder, schedule, count=NEW, **options):
    stats = Stats()
    found = decoder.generate(PROMPT, count, schedule=schedule, stats=stats, **options)
    return [t for step in found for t in step], stats


def test_drafted_tokens_are_the_greedy_ones(decoder, truth):
    """And every step accepts exactly what the table had right."""
    ids, stats = drafted(decoder, Fixed(BLOCK))
    assert ids == truth[len(PROMPT) :] and stats.finish == "length"
    position = len(PROMPT) - 1
    for step in stats.history[:-1]:  # the last one goes beyond the table
        right = [not is_wrong(position + 1 + i) for i in range(BLOCK - 1)]
        assert step.rows == BLOCK and step.accepted == (right + [False]).index(False)
        position += step.accepted + 1
    assert {s.accepted for s in stats.history[:-1]} >= {0, 1, 3}


def test_fewer_rows_by_schedule(decoder, truth):
    """A fixed number, and as many as the confidence is worth: the reference's choice."""
    ids, stats = drafted(decoder, Fixed(2))
    assert ids == truth[len(PROMPT) :] and {s.rows for s in stats.history} == {2}
    schedule = Adaptive(CostTable(0.1, {1: 1.0, 2: 1.7, 3: 1.8, 4: 1.9}))
    asked = request(1, frozenset(), schedule, [Sampling()])
    ids, stats = drafted(decoder, schedule)
    assert ids == truth[len(PROMPT) :]
    assert {s.rows for s in stats.history} >= {1, BLOCK}  # plain steps, in their own kernel
    for step in stats.history:
        confidence = jnp.asarray(step.confidence)[None]
        assert step.rows == choose_rows(confidence, jnp.ones(1, bool), asked)[0]


@pytest.fixture(scope="module")
def decode(decoder):
    return DecodeFunction(decoder.programs(), CONTEXT, Sampling(), Fixed(BLOCK))


@pytest.fixture(scope="module")
def run(decode):
    return jax.jit(decode, donate_argnums=1)


def test_a_pure_function_under_the_callers_jit(decoder, decode, run, truth):
    """State in, state out; a state that was donated is refused by name."""
    state, found, steps = decode.start(PROMPT), [], 0
    while len(found) < NEW:
        used = state
        request = decode.request(NEW - len(found), before=steps)
        state, done = run(decode.weights, state, request)
        assert int(done.count) <= decode.steps == 3
        found, steps = found + decode.tokens(done), steps + int(done.count)
    assert found == truth[len(PROMPT) :]
    with pytest.raises(InputError, match="state: expected the newest one, found one that an earli"):
        decode(decode.weights, used, decode.request(1))
    with pytest.raises(InputError, match="state: expected the newest one"):
        decoder.programs().prefill(used, 0, PROMPT)
    with pytest.raises(InputError, match="state: expected the newest one"):
        run(decode.weights, used, decode.request(1))
    with pytest.raises(InputError, match="prompt: expected at least one token, found none"):
        decode.start([])
    for shown in (decode, state, done, used, decode.request(1), decoder.model):
        assert len(repr(shown)) < 500


@pytest.fixture(scope="module")
def example():
    """What `scripts/example_decode.py` defines."""
    return runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "example_decode.py"))


def test_the_example_decodes_to_the_end(decoder, truth, example):
    """Up to the number of tokens, and up to a stop id."""
    decode = DecodeFunction(decoder.programs(), CONTEXT, Sampling(), Fixed(BLOCK))
    new = truth[len(PROMPT) :]
    stop = new[8]
    for stops, expected in (
        (frozenset(), new[:NEW]),
        (frozenset({stop}), new[: new.index(stop) + 1]),
    ):
        calls = list(example["decoded"](decode, PROMPT, NEW, stops))
        assert [token for ids in calls for token in ids] == expected and len(calls) > 1


@pytest.mark.slow  # compiles both kernels for the interpreter
def test_the_example_answers(example, capsys):
    example["main"]()
    assert "7" in capsys.readouterr().out


def test_a_pure_function_behind_the_end_emits_nothing(decode, run, truth):
    """Behind a stop id; a prompt may end with one, and all that was asked for may be emitted."""
    new = range(len(PROMPT), len(truth) - 1)
    end = max(i for i in new if truth[i] not in truth[len(PROMPT) : i])
    request, found, calls = decode.request(NEW, stop_ids=frozenset({truth[end]})), [], []
    state = decode.start(PROMPT)
    while len(calls) < 2 or calls[-2][0]:
        state, done = run(decode.weights, state, request)
        found += decode.tokens(done)
        calls.append((int(done.count), bool(done.finished[0]), bool(done.stopped[0])))
    assert found == truth[len(PROMPT) : end + 1]
    assert calls[0][1:] == (False, False) and calls[-2:] == [(0, True, True)] * 2
    state, done = run(decode.weights, decode.start(truth[: end + 1]), request)
    assert decode.tokens(done)[0] == truth[end + 1]
    _, done = run(decode.weights, decode.start(PROMPT), decode.request(1))
    assert bool(done.finished[0]) and not bool(done.stopped[0]) and len(decode.tokens(done)) == 1


def test_a_pure_function_says_what_it_cannot_take(decode):
    state, request = decode.start(PROMPT), decode.request(1)
    other = replace(state, tokens=jnp.zeros(2, jnp.int32))
    for arguments, message in [
        ((request, state), "state: expected a DecodeState, found Request"),
        ((state, 4), "request: expected a Request, found 4"),
        ((other, request), "state: tokens: expected int32"),
    ]:
        with pytest.raises(InputError, match=message):
            decode(decode.weights, *arguments)
    for options, message in [
        ({"max_tokens": 1.0}, "max tokens: expected an integer, found 1.0"),
        ({"max_tokens": CONTEXT + 1}, "max tokens: expected an integer from 0 to 256"),
        ({"max_tokens": 1, "before": -1}, "before: expected an integer from 0 to"),
        ({"max_tokens": 1, "stop_ids": {2048}}, "stop ids: token 0: expected an id from 0 to 2047"),
        ({"max_tokens": 1, "stop_ids": None}, "stop ids: expected token ids, found None"),
        ({"max_tokens": 1, "stop_ids": frozenset(range(17))}, "stop ids: expected at most 16"),
    ]:
        with pytest.raises(InputError, match=message):
            decode.request(**options)
    with pytest.raises(InputError, match="steps: expected the Steps of a call, found"):
        decode.tokens((state, request))
    with pytest.raises(InputError, match="steps: expected values, found traced ones"):
        jax.eval_shape(decode.tokens, no_steps(3, 1, BLOCK))
    assert jax.eval_shape(decode.request, jnp.int32(3)).left.shape == (1,)  # a traced number


def test_an_interrupted_generation_leaves_the_decoder_usable(decoder, truth, monkeypatch):
    """What was given out stays; the same decoder starts again from the prompt."""
    run, calls = decoder.programs().run, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr(decoder.programs(), "run", interrupted)
    found = []
    with pytest.raises(KeyboardInterrupt):
        for ids in decoder.generate(PROMPT, NEW, schedule=Fixed(BLOCK)):
            found += ids
    assert found and found == truth[len(PROMPT) :][: len(found)]
    monkeypatch.undo()
    assert drafted(decoder, Fixed(BLOCK))[0] == truth[len(PROMPT) :]


def test_where_a_generation_ends(decoder, truth):
    """After so many tokens, inside a block; or at a stop id, which is given out."""
    ids, stats = drafted(decoder, Fixed(BLOCK), 6)
    assert ids == truth[len(PROMPT) :][:6] and stats.finish == "length"
    stop = truth[len(PROMPT) + 4]
    first = truth[len(PROMPT) :].index(stop)
    ids, stats = drafted(decoder, Fixed(BLOCK), stop_ids=frozenset({stop}))
    assert ids == truth[len(PROMPT) :][: first + 1] and stats.finish == "stop"
    plain = [t for s in decoder.generate(PROMPT, NEW, stop_ids=frozenset({stop})) for t in s]
    assert plain == ids


def test_a_batch_of_prompts_of_different_lengths(decoder, truth):
    """Each as if alone: a sequence that is still reading its prompt waits for nobody."""
    lengths = (9, 7, 14)
    steps = list(decoder.generate_batch([truth[:n] for n in lengths], 5))
    for i, n in enumerate(lengths):
        assert [t for step in steps for t in step[i]] == truth[n : n + 5]


def test_a_sampled_block_repeats_with_its_seed_and_follows_top_p(decoder, truth):
    """top_p or top_k so small that only the most probable token is left: the greedy tokens."""
    sampling = Sampling(1.0, 1e-6, seed=3)
    assert drafted(decoder, Fixed(BLOCK), sampling=sampling)[0] == truth[len(PROMPT) :]
    narrow = Sampling(5.0, seed=3, top_k=1)
    assert drafted(decoder, Fixed(BLOCK), sampling=narrow)[0] == truth[len(PROMPT) :]
    warm = [drafted(decoder, Fixed(BLOCK), 8, sampling=Sampling(2.0, 1.0, s))[0] for s in (1, 1, 2)]
    assert warm[0] == warm[1] != warm[2]


@pytest.mark.slow  # hundreds of short calls
@pytest.mark.parametrize("right", [True, False])
def test_sampled_tokens_follow_the_targets_distribution(decoder, config, tensors, truth, right):
    """The token behind a prompt, drafted rightly or wrongly: Pearson's test over many seeds."""
    draws, sampling = 400, Sampling(2.0)  # top_p 1: at its edge forms of a step may differ
    session = Session(config, tensors, context=CONTEXT)
    logits = np.concatenate([session.step([token])[2] for token in truth])
    every = np.asarray(distribution(jnp.asarray(logits), sampling.temperature, sampling.top_p))
    common = (every * draws >= 5).sum(-1)  # tokens that are drawn often
    lengths = [n for n in range(len(PROMPT), len(truth)) if is_wrong(n) != right]
    length = max(lengths, key=lambda n: common[n - 1])
    p = every[length - 1]
    assert common[length - 1] > 3  # enough to tell distributions apart
    programs, rows = decoder.programs(), row_counts(Fixed(BLOCK))
    start = programs.start([truth[:length]])
    counts, accepted = np.zeros(2048, int), 0
    for seed in range(draws):
        asked = request(1, frozenset(), Fixed(BLOCK), [replace(sampling, seed=seed)])
        _, _, done = programs.run(jax.tree.map(jnp.copy, start), asked, False, rows)
        counts[int(done.tokens[0, 0, 0])] += 1
        accepted += int(done.accepted[0, 0]) > 0
    assert follows(counts, p) and not follows(counts[::-1], p)
    draft = (truth[length] + (not right)) % 2048
    assert abs(accepted - p[draft] * draws) <= 4 * np.sqrt(draws * p[draft] * (1 - p[draft])) + 1


def test_what_cannot_be_served_is_said(decoder, model):
    with pytest.raises(InputError, match="prompt: token 1: expected an id from 0 to 2047"):
        decoder.generate([1, 5000], 3)
    with pytest.raises(InputError, match="expected at most 256 in all"):
        decoder.generate(PROMPT, 250)
    with pytest.raises(InputError, match="max tokens: expected at least 1, found 0"):
        decoder.generate(PROMPT, 0)
    with pytest.raises(InputError, match="prompts: expected 1 to 8, found 9"):
        decoder.generate_batch([PROMPT] * 9, 1)
    with pytest.raises(InputError, match="seed: expected an integer from 0 to 2147483647"):
        decoder.generate_batch([PROMPT] * 2, 1, sampling=Sampling(1.0, seed=2**31 - 1))
    with pytest.raises(InputError, match="verify: expected 'off' for several prompts with the k"):
        decoder.generate_batch([PROMPT] * 2, 1, schedule=Fixed(2))
    with pytest.raises(InputError, match="stop ids: expected at most 16, found 17"):
        decoder.generate(PROMPT, 1, stop_ids=frozenset(range(17)))
    bare = replace(model, draft_layout=None, drafter=None)
    with pytest.raises(InputError, match="expected a drafter, found none"):
        Decoder(KernelModel(bare), CONTEXT).generate(PROMPT, 1, schedule=Fixed(2))


def test_damaged_weights_are_noticed(decoder, model, monkeypatch):
    """NaN in the vectors: no token is given out."""
    broken = model.target._replace(vectors=jnp.full_like(model.target.vectors, jnp.nan))
    programs = decoder.programs(1, drafts=False)
    monkeypatch.setattr(programs.backend, "weights", replace(model, target=broken).arrays)
    with pytest.raises(NumericsError, match="logits at position 6: expected finite numbers"):
        list(decoder.generate(PROMPT, 2))
