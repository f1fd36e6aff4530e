"""The decoding loop on the small K3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kimi.decoding.engine import Decoder, Stats
from kimi.decoding.programs import Programs
from kimi.decoding.sampling import Sampling, distribution
from kimi.decoding.schedule import PREDICTED_TPU_COSTS, Adaptive, CostTable, Fixed
from kimi.errors import InputError, NumericsError
from kimi.text import encode_chat
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


def generate(decoder, prompt, count, **options):
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
    plain, _ = generate(decoder, prompts[name], 64, stop_ids=stop)
    drafted, stats = generate(
        decoder, prompts[name], 64, stop_ids=stop, schedule=SCHEDULES[schedule]
    )
    assert drafted == plain
    assert stats.tokens == len(plain)
    assert sum(step.accepted + 1 for step in stats.history) >= len(plain)
    assert stats.acceptance_length > 1.5


@pytest.mark.parametrize("seed", range(4))
def test_any_drafted_greedy_output_is_the_plain_one(decoder, tiny, seed):
    """Prompts of random ids, random lengths and stops, whatever schedule."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 1792, rng.integers(1, 40)).tolist()
    count, stop = int(rng.integers(1, 40)), frozenset(rng.integers(0, 1792, 16).tolist())
    plain, truth = generate(decoder, prompt, count, stop_ids=stop)
    for schedule in SCHEDULES.values():
        drafted, stats = generate(decoder, prompt, count, stop_ids=stop, schedule=schedule)
        assert drafted == plain and stats.finish == truth.finish
        assert stats.tokens == len(plain) and stats.prompt_tokens == len(prompt)


def test_the_answer_is_right(decoder, prompts, tiny):
    ids, stats = generate(
        decoder, prompts["problem"], 64, stop_ids=tiny.tokenizer.stop_ids, schedule=Fixed(8)
    )
    assert "The answer is 16." in tiny.tokenizer.decode(ids)
    assert stats.finish == "stop" and ids[-1] in tiny.tokenizer.stop_ids


def test_adaptive_verifies_fewer_rows_where_confidence_is_low(decoder, prompts, tiny):
    rows = {}
    for name, prompt in prompts.items():
        _, stats = generate(
            decoder, prompt, 48, stop_ids=tiny.tokenizer.stop_ids, schedule=SCHEDULES["adaptive"]
        )
        rows[name] = np.mean([step.rows for step in stats.history])
    assert rows["prose"] < rows["problem"]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_max_tokens_is_exact(decoder, prompts, count):
    ids, stats = generate(decoder, prompts["prose"], count, schedule=Fixed(8))
    assert len(ids) == count and stats.finish == "length"


def test_generation_up_to_the_last_slot_of_the_context(decoder, prompts):
    """A block may reach beyond the context's end; the tokens inside stay plain greedy."""
    prompt = prompts["prose"]
    count = decoder.capacity - len(prompt)
    drafted, _ = generate(decoder, prompt, count, schedule=Fixed(8))
    plain, _ = generate(decoder, prompt, count)
    assert drafted == plain and len(drafted) == count


def test_stop_id_inside_an_accepted_block_ends_the_output(decoder, prompts):
    free, _ = generate(decoder, prompts["problem"], 40, schedule=Fixed(8))
    stop = free[9]
    ids, stats = generate(
        decoder, prompts["problem"], 40, schedule=Fixed(8), stop_ids=frozenset([stop])
    )
    assert ids == free[: free.index(stop) + 1] and stats.finish == "stop"


def test_a_seed_repeats_its_output(decoder, prompts):
    a, b, c = (
        generate(decoder, prompts["prose"], 24, schedule=Fixed(8), sampling=Sampling(1.0, 0.95, s))[
            0
        ]
        for s in (3, 3, 4)
    )
    assert a == b != c


def test_sampled_first_token_is_distributed_as_the_target(decoder, prompts, tiny):
    """Speculative sampling through the whole loop, 400 seeds, against the model's own softmax."""
    prompt, sampling = prompts["prose"], (0.8, 0.9)
    context = decoder.prefill(prompt[:-1], decoder.empty_context())
    out = tiny.target.rows(jnp.asarray([prompt[-1]]), context.target)
    p = np.asarray(distribution(tiny.target.logits(out.hidden)[0], *sampling), np.float64)
    draft = np.asarray(decoder.draft(prompt[-1], context).tokens)
    block = [prompt[-1], *draft[:7].tolist()]  # the width of the seed test: compiled once
    counts = np.zeros(len(p), int)
    draws = 400
    for seed in range(draws):
        copy = jax.tree.map(jnp.copy, context)
        tokens, _, _ = decoder.verify(block, copy, Sampling(*sampling, seed))
        counts[tokens[0]] += 1
    assert counts[p == 0].sum() == 0
    assert follows(counts, p)


def test_prefill_of_a_long_prompt_takes_several_calls(tiny):
    """More than one compiled size; the same state as in smaller parts."""
    decoder = tiny.decoder(1024)
    ids = np.random.default_rng(0).integers(0, 1792, 600).tolist()
    whole = decoder.prefill(ids, decoder.empty_context())  # 512 and 128
    parts = decoder.prefill(ids[:100], decoder.empty_context())
    parts = decoder.prefill(ids[100:], parts)
    a, _, _ = decoder.verify([5], whole, Sampling())
    b, _, _ = decoder.verify([5], parts, Sampling())
    assert a == b


def test_a_continued_conversation_equals_a_cold_one(decoder, prompts, tiny):
    """Recurrent state is reused only where a turn ended; from there it equals reading anew."""
    stop = tiny.tokenizer.stop_ids
    first = prompts["problem"]
    answer, _ = generate(decoder, first, 64, stop_ids=stop)
    more = encode_chat([{"role": "user", "content": "Thank you!"}], tiny.tokenizer, thinking="off")
    cold, _ = generate(decoder, first + answer + more, 24, stop_ids=stop)
    context = decoder.prefill(first + answer, decoder.empty_context())
    context = decoder.prefill(more[:-1], context)
    anchor, warm = more[-1], []
    while len(warm) < 24 and not (warm and warm[-1] in stop):
        tokens, _, context = decoder.verify([anchor], context, Sampling())
        warm += tokens
        anchor = tokens[-1]
    assert warm == cold


def test_nan_weights_raise_instead_of_printing_padding(tiny):
    broken = nnx.clone(tiny.target)
    broken.norm.weight[...] = broken.norm.weight[...].at[0].set(jnp.nan)
    decoder = Decoder(Programs.of(broken, tiny.config), 256)
    with pytest.raises(NumericsError, match="logits at position 2: .*found NaN or infinity"):
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
    decoder = Decoder(Programs.of(tiny.target, tiny.config), 64)
    with pytest.raises(InputError, match="expected a drafter, found none"):
        decoder.generate([1], 4, schedule=Adaptive(PREDICTED_TPU_COSTS))


def test_measured_costs_have_every_width(decoder):
    table = decoder.measure_costs((1, 2), repeats=1)
    assert set(table.rows) == {1, 2} and table.draft > 0
