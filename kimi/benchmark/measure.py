"""Decoding requests drafted and plainly, with the time of every step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np
from jax.experimental import multihost_utils

from kimi import process
from kimi.api import Engine
from kimi.decoding.engine import Decoder, Stats, Step
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import CostTable, Schedule
from kimi.models import capacity_for
from kimi.runtime.decoder import KernelDecoder
from kimi.runtime.files import KernelModel
from kimi.runtime.timing import measure_costs
from kimi.values import integer, number

Decoding = Decoder | KernelDecoder
_WIDTHS = (1, 2, 4, 8)  # rows whose verification is timed for the adaptive schedule


@dataclass
class Run:
    """One request, decoded in one way.

    Attributes:
      ids: generated.
      first_seconds: from the request to its first tokens in the host's hands: the prompt, and the
        first step or, with the kernel, the first call of several steps.
      seconds: of every timed step. A call of N steps on a device counts N times its N-th part.
      tokens: emitted by every timed step.
      history: every step, the ones not timed included.
      finish: "stop" or "length".
    """

    ids: list[int]
    first_seconds: float
    seconds: list[float]
    tokens: list[int]
    history: list[Step]
    finish: str


@dataclass
class Pair:
    """One request, decoded plainly and with drafts."""

    prompt_tokens: int
    plain: Run
    drafted: Run


@dataclass
class Outcome:
    """What has been measured; `interrupted` if that is not everything."""

    pairs: list[Pair] = field(default_factory=list)
    interrupted: bool = False


def make_decoder(engine: Engine, tokens: int, steps: int, forced: float) -> Decoding:
    """A decoder with room for `tokens` tokens; `steps` and `forced` are the kernel's.

    Raises:
      InputError: more than the model's context, or a value that is no count.
    """
    capacity = capacity_for(engine.config, integer("tokens", tokens, 1))
    steps, forced = integer("steps", steps, 1), number("forced", forced)
    if isinstance(engine.model, KernelModel):
        return KernelDecoder(engine.model.placed, capacity, steps, forced)
    return Decoder(engine.model.programs, capacity)


def step_costs(decoder: Decoding, tokens: Sequence[int], block: int, rows: int | None) -> CostTable:
    """Draft and verification timed apart, in milliseconds, the same on all hosts.

    Args:
      tokens: a prompt.
      rows: of a fixed schedule; None measures what an adaptive one chooses from.
    """
    widths = sorted({1, rows} if rows else {w for w in _WIDTHS if w < block} | {block})
    if isinstance(decoder, KernelDecoder):
        costs = measure_costs(decoder, tokens, widths)
    else:
        costs = decoder.measure_costs(widths)
    if jax.process_count() == 1:
        return costs
    # Hosts that chose by their own clocks would run different steps of one program.
    own = np.array([costs.draft, *(costs.rows[w] for w in widths)], np.float64)
    shared = multihost_utils.broadcast_one_to_all(own)
    return CostTable(float(shared[0]), dict(zip(widths, map(float, shared[1:]), strict=True)))


def decode(
    decoder: Decoding, prompt: Sequence[int], length: int, schedule: Schedule | None,
    stop_ids: frozenset[int],
) -> Run:  # fmt: skip
    """Decodes one request greedily."""
    stats, ids, seconds, tokens = Stats(), [], [], []
    first = before = 0.0
    start = time.perf_counter()
    for new in decoder.generate(
        prompt, length, sampling=Sampling(), schedule=schedule, stop_ids=stop_ids, stats=stats
    ):
        first = first or time.perf_counter() - start
        ids += new
        seconds.append(stats.decode_seconds - before)
        tokens.append(len(new))
        before = stats.decode_seconds
    return Run(ids, first, seconds, tokens, stats.history, stats.finish)


def measure(
    decoder: Decoding, prompts: Sequence[Sequence[int]], length: int, schedule: Schedule,
    stop_ids: frozenset[int], advance: Callable[[], None],
) -> Outcome:  # fmt: skip
    """Decodes every prompt plainly and drafted, one after the other.

    In turn, so that a machine that slows down does so for both. Ctrl-C ends the run; requests that
    have been decoded both ways stay.
    """
    outcome = Outcome()
    try:
        for prompt in prompts:
            plain = decode(decoder, prompt, length, None, stop_ids)
            drafted = decode(decoder, prompt, length, schedule, stop_ids)
            outcome.pairs.append(Pair(len(prompt), plain, drafted))
            advance()
    except KeyboardInterrupt:
        process.handled()
        outcome.interrupted = True
    return outcome
