"""Decoding requests drafted and plainly, with the time of every step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kimi import process
from kimi.api import Engine, Verify
from kimi.decoding.stats import Stats


@dataclass(frozen=True)
class Options:
    """How all requests are decoded.

    Attributes:
      max_tokens: of a request.
      context: room in tokens, the same for all: they share their programs.
      stops: whether a stop id ends a request.
    """

    max_tokens: int
    context: int
    stops: bool


@dataclass
class Run:
    """One request, decoded in one way: the ids and how it went."""

    ids: list[int]
    stats: Stats

    @property
    def seconds(self) -> list[float]:
        """Of every step. A call of N steps on a device counts N times its N-th part."""
        return [step.seconds for step in self.stats.history]

    @property
    def tokens(self) -> list[int]:
        """Emitted by every step."""
        return [len(step.tokens) for step in self.stats.history]


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


def decode(engine: Engine, prompt: Sequence[int], options: Options, verify: Verify) -> Run:
    """Decodes one request greedily."""
    answer = engine.generate(
        prompt, options.max_tokens, verify=verify, context=options.context,
        stop_ids=None if options.stops else (),
    ).run()  # fmt: skip
    return Run(answer.ids, answer.stats)


def measure(
    engine: Engine, prompts: Sequence[Sequence[int]], options: Options, verify: Verify,
    advance: Callable[[], None],
) -> Outcome:  # fmt: skip
    """Decodes every prompt plainly and drafted, one after the other.

    In turn, so that a machine that slows down does so for both. Ctrl-C ends the run; requests that
    have been decoded both ways stay.
    """
    outcome = Outcome()
    try:
        for prompt in prompts:
            plain = decode(engine, prompt, options, "off")
            drafted = decode(engine, prompt, options, verify)
            outcome.pairs.append(Pair(len(prompt), plain, drafted))
            advance()
    except KeyboardInterrupt:
        process.handled()
        outcome.interrupted = True
    return outcome
