"""The decoding loop on the small K3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kimi.decoding import timing
from kimi.decoding.decoder import Decoder
from kimi.decoding.function import DecodeFunction
from kimi.decoding.reference import ReferenceModel
from kimi.decoding.requests import request, row_counts
from kimi.decoding.sampling import Sampling, distribution
from kimi.decoding.schedule import PREDICTED_TPU_COSTS, Adaptive, CostTable, Fixed
from kimi.decoding.stats import Stats
from kimi.decoding.timing import measure_costs
from kimi.errors import InputError, NumericsError
from kimi.text import encode_chat
from tests.greedy_oracle import greedy
from tests.unit.decoding.test_acceptance import follows

PROBLEM = (
    "Mia has 3 boxes with 7 apples in each. She gives 5 apples to Tom. How many apples does Mia "
    "have left?"
)


@pytest.fixture(scope="module")
def decoder(tiny) -> Decoder:
    return tiny.decoder(256)


@pytest.fixture(scope="module")
def prompts(tiny) -> dict[str, list[int]]:
    return {
        "problem": encode_chat(
            [{"role": "user", "content": PROBLEM}], tiny.tokenizer, thinking="off"
        ),
        "prose": tiny.tokenizer.encode("It was a fine day, and the whole party set out for"),
    }


def decode(decoder, prompt, count, **options):
    stats = Stats()
    ids = [t for new in decoder.generate(prompt, count, stats=stats, **options) for t in new]
    return ids, stats


SCHEDULES = {
    "rows3": Fixed(3),
    "rows8": Fixed(8),
    "adaptive": Adaptive(CostTable(0.25, {1: 2.2, 3: 3.0, 8: 4.7})),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["problem", "prose"])
def test_greedy_is_plain_greedy(decoder, prompts, tiny, name, schedule):
    stop = tiny.tokenizer.stop_ids
    plain, _ = decode(decoder, prompts[name], 64, stop_ids=stop)
    drafted, stats = decode(decoder, prompts[name], 64, stop_ids=stop, schedule=SCHEDULES[schedule])
    assert drafted == plain
    assert stats.tokens == len(plain)
    assert sum(len(step.tokens) for step in stats.history) == len(plain)
    assert stats.acceptance_length > 1.5


@pytest.mark.parametrize("seed", range(4))
def test_any_drafted_greedy_output_is_the_plain_one(decoder, tiny, seed):
    """Prompts of random ids, random lengths and stops, whatever schedule."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 1792, rng.integers(1, 40)).tolist()
    count, stop = int(rng.integers(1, 40)), frozenset(rng.integers(0, 1792, 16).tolist())
    plain, truth = decode(decoder, prompt, count, stop_ids=stop)
    for schedule in SCHEDULES.values():
        drafted, stats = decode(decoder, prompt, count, stop_ids=stop, schedule=schedule)
        assert drafted == plain and stats.finish == truth.finish
        assert stats.tokens == len(plain) and stats.prompt_tokens == len(prompt)


def test_the_answer_is_right(decoder, prompts, tiny):
    ids, stats = decode(
        decoder, prompts["problem"], 64, stop_ids=tiny.tokenizer.stop_ids, schedule=Fixed(8)
    )
    assert "The answer is 16." in tiny.tokenizer.decode(ids)
    assert stats.finish == "stop" and ids[-1] in tiny.tokenizer.stop_ids


def test_adaptive_verifies_fewer_rows_where_confidence_is_low(decoder, prompts, tiny):
    rows = {}
    for name, prompt in prompts.items():
        _, stats = decode(
            decoder, prompt, 48, stop_ids=tiny.tokenizer.stop_ids, schedule=SCHEDULES["adaptive"]
        )
        rows[name] = np.mean([step.rows for step in stats.history])
    assert rows["prose"] < rows["problem"]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_max_tokens_is_exact(decoder, prompts, count):
    ids, stats = decode(decoder, prompts["prose"], count, schedule=Fixed(8))
    assert len(ids) == count and stats.finish == "length"


def test_generation_up_to_the_last_slot_of_the_context(decoder, prompts):
    """A block may reach beyond the context's end; the tokens inside stay plain greedy."""
    prompt = prompts["prose"]
    count = decoder.capacity - len(prompt)
    drafted, _ = decode(decoder, prompt, count, schedule=Fixed(8))
    plain, _ = decode(decoder, prompt, count)
    assert drafted == plain and len(drafted) == count


def test_stop_id_inside_an_accepted_block_ends_the_output(decoder, prompts):
    free, _ = decode(decoder, prompts["problem"], 40, schedule=Fixed(8))
    stop = free[9]
    ids, stats = decode(
        decoder, prompts["problem"], 40, schedule=Fixed(8), stop_ids=frozenset([stop])
    )
    assert ids == free[: free.index(stop) + 1] and stats.finish == "stop"


def test_a_seed_repeats_its_output(decoder, prompts):
    a, b, c = (
        decode(decoder, prompts["prose"], 24, schedule=Fixed(8), sampling=Sampling(1.0, 0.95, s))[0]
        for s in (3, 3, 4)
    )
    assert a == b != c


@pytest.mark.parametrize("name", ["problem", "prose"])
def test_plain_decoding_is_that_of_an_independent_loop(decoder, prompts, tiny, name):
    stop = tiny.tokenizer.stop_ids
    expected = greedy(tiny.runner.target, tiny.config, prompts[name], 24, stop)
    assert decode(decoder, prompts[name], 24, stop_ids=stop)[0] == expected


def test_sampled_first_token_is_distributed_as_the_target(decoder, prompts, tiny):
    """Speculative sampling through the whole loop, 400 seeds, against the model's own softmax."""
    prompt, sampling = prompts["prose"], (0.8, 0.9)
    programs = decoder.programs()
    state = programs.start([prompt])
    logits = tiny.logits(prompt)[-1]
    p = np.asarray(distribution(jnp.asarray(logits), *sampling), np.float64)
    counts = np.zeros(len(p), int)
    for seed in range(400):
        asked = request(1, frozenset(), Fixed(8), [Sampling(*sampling, seed)])
        copy = jax.tree.map(jnp.copy, state)
        _, _, done = programs.run(copy, asked, False, row_counts(Fixed(8)))
        counts[int(done.tokens[0, 0, 0])] += 1
    assert counts[p == 0].sum() == 0
    assert follows(counts, p) and not follows(counts[::-1], p)


def test_prefill_of_a_long_prompt_takes_several_calls(tiny):
    """More than one compiled size; the same state as in smaller parts."""
    programs = tiny.decoder(1024).programs()
    ids = np.random.default_rng(0).integers(0, 1792, 601).tolist()
    whole = programs.start([ids])  # 512 and 128
    parts = programs.prefill(programs.start([ids[:101]]), 0, ids[100:])
    found = []
    for state in (whole, parts):
        asked = request(1, frozenset(), Fixed(1), [Sampling()])
        state, _, done = programs.run(state, asked, True, frozenset({1}))
        found.append(int(done.tokens[0, 0, 0]))
        assert int(state.positions[0]) == 601
    assert found[0] == found[1]


@pytest.mark.parametrize("schedule", [None, Fixed(8)], ids=["plain", "drafted"])
def test_a_continued_conversation_equals_a_cold_one(decoder, prompts, tiny, schedule):
    """Recurrent state is reused only where a turn ended; from there it equals reading anew."""
    options = {"stop_ids": tiny.tokenizer.stop_ids, "schedule": schedule}
    kept = decoder.conversation(schedule is not None)
    prompt = prompts["problem"]
    answer, stats = decode(decoder, prompt, 64, conversation=kept, **options)
    assert stats.cached_tokens == 0
    more = encode_chat([{"role": "user", "content": "Thank you!"}], tiny.tokenizer, thinking="off")
    prompt = prompt + answer + more
    warm, stats = decode(decoder, prompt, 24, conversation=kept, **options)
    assert stats.cached_tokens == len(prompt) - len(more) - 1
    assert warm == decode(decoder, prompt, 24, **options)[0]


SEQUENCES = {"plain": None, "two rows each": Fixed(2), "by confidence": SCHEDULES["adaptive"]}


@pytest.mark.parametrize("schedule", SEQUENCES.values(), ids=SEQUENCES)
def test_sequences_side_by_side_are_as_if_alone(decoder, prompts, tiny, schedule):
    """Of different lengths, with and without drafts: one that has ended stays as it is."""
    batch = [prompts["problem"], prompts["prose"], prompts["problem"][:20]]
    stop, stats = tiny.tokenizer.stop_ids, [Stats() for _ in batch]
    found = [[] for _ in batch]
    for step in decoder.generate_batch(batch, 40, schedule=schedule, stop_ids=stop, stats=stats):
        assert len(step) == 3
        for ids, new in zip(found, step, strict=True):
            ids += new
    for prompt, ids, own in zip(batch, found, stats, strict=True):
        alone, truth = decode(decoder, prompt, 40, stop_ids=stop)
        assert ids == alone and own.finish == truth.finish and own.tokens == len(ids)
    assert {own.finish for own in stats} == {"stop", "length"}
    if schedule is not None:
        assert max(own.acceptance_length for own in stats) > 1.2


def test_sequences_side_by_side_draw_as_if_alone(decoder, prompts):
    """Each with its own seed; one that is greedy beside one that is drawn."""
    sampling, batch = Sampling(1.0, 0.9, 5, 40), [prompts["prose"], prompts["problem"]]
    steps = list(decoder.generate_batch(batch, 12, sampling=sampling))
    for i, prompt in enumerate(batch):
        own = Sampling(1.0, 0.9, 5 + i, 40)
        assert [t for step in steps for t in step[i]] == decode(decoder, prompt, 12, sampling=own)[
            0
        ]
    programs = decoder.programs(2, drafts=False)
    asked = request(12, frozenset(), None, [Sampling(), sampling])
    ids = [[], []]
    state, done = programs.start(batch), None
    while done is None or not done.finished.all():
        state, asked, done = programs.run(state, asked, False, frozenset({1}))
        for i in range(2):
            ids[i] += np.asarray(done.tokens)[: int(done.count), i, 0].tolist()
    assert ids[0] == decode(decoder, batch[0], 12)[0]
    assert ids[1] == decode(decoder, batch[1], 12, sampling=sampling)[0]


def test_the_pure_function_runs_on_the_reference_too(tiny, prompts):
    """Under the caller's own jit; its tokens are the decoder's."""
    decoder = tiny.decoder(256, 4)
    decode_steps = DecodeFunction(decoder.programs(), 256, Sampling(), Fixed(8))
    run = jax.jit(decode_steps, donate_argnums=1)
    state, found, steps, finished = decode_steps.start(prompts["problem"]), [], 0, False
    stop = tiny.tokenizer.stop_ids
    while not finished:
        asked = decode_steps.request(64 - len(found), stop_ids=stop, before=steps)
        state, done = run(decode_steps.weights, state, asked)
        found, finished = found + decode_steps.tokens(done), bool(done.finished.all())
        steps += int(done.count)
    assert found == decode(decoder, prompts["problem"], 64, stop_ids=stop)[0]


def test_nan_weights_raise_instead_of_printing_padding(tiny):
    broken = nnx.clone(tiny.runner.target)
    broken.norm.weight[...] = broken.norm.weight[...].at[0].set(jnp.nan)
    decoder = Decoder(ReferenceModel.of(broken, tiny.config), 256)
    with pytest.raises(NumericsError, match="logits at position 1: .*found NaN or infinity"):
        list(decoder.generate([1, 2], 4))


@pytest.mark.parametrize(
    "prompt,count,message",
    [
        ([], 4, "prompt: expected at least one token, found none"),
        ([1], 0, "max tokens: expected at least 1, found 0"),
        ([1, 2048], 4, "prompt: token 1: expected an id from 0 to 2047, found 2048"),
        ([-1], 4, "prompt: token 0: expected an id from 0 to 2047, found -1"),
        ([1] * 200, 57, "expected at most 256 in all .*found 257"),
        ([1.0], 4, "prompt: token 0: expected an integer, found 1.0"),
        ([1], 4.0, "max tokens: expected an integer, found 4.0"),
    ],
)
def test_bad_requests_are_named(decoder, prompt, count, message):
    with pytest.raises(InputError, match=message):
        decoder.generate(prompt, count)


def test_a_schedule_needs_a_drafter(tiny):
    decoder = Decoder(ReferenceModel.of(tiny.runner.target, tiny.config), 64)
    with pytest.raises(InputError, match="expected a drafter, found none"):
        decoder.generate([1], 4, schedule=Adaptive(PREDICTED_TPU_COSTS))


def test_measured_costs_have_every_width(decoder):
    table = measure_costs(decoder, range(1, 30), (1, 2), repeats=1)
    assert set(table.rows) == {1, 2} and table.draft > 0


def test_hosts_take_the_costs_of_the_first(decoder, monkeypatch):
    """Hosts that chose rows by their own clocks would run different steps of one program."""
    sent = []

    def first_hosts(own):
        sent.append(own)
        return np.arange(1, len(own) + 1) / 2

    monkeypatch.setattr(timing.jax, "process_count", lambda: 2)
    monkeypatch.setattr(timing.multihost_utils, "broadcast_one_to_all", first_hosts)
    table = measure_costs(decoder, range(1, 30), (1, 2), repeats=1)
    assert (table.draft, table.rows) == (0.5, {1: 1.0, 2: 1.5}) and (sent[0] > 0).all()
