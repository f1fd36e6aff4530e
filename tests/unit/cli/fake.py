"""An engine that returns given answers at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from kimi.api import Engine
from kimi.assets import TINY_K3
from kimi.decoding.checks import check_request
from kimi.decoding.stats import Stats, Step
from kimi.text import Tokenizer

BLOCK = 8


@dataclass
class FakeDecoder:
    """Gives out the next answer of a model, token by token.

    Attributes:
      asked: the prompts, as ids.
    """

    model: "FakeModel"
    capacity: int

    def generate(
        self, prompt: Sequence[int], max_tokens: int, *, stop_ids: frozenset[int], stats: Stats,
        **_: object,
    ) -> Iterator[list[int]]:  # fmt: skip
        """See `decoding.decoder.Decoder.generate`."""
        check_request(prompt, max_tokens, self.model.config.vocab_size, self.capacity)
        self.model.asked.append(self.model.tokenizer.decode(prompt))
        return self._steps(prompt, max_tokens, stop_ids, stats)

    def conversation(self, drafts: bool) -> None:
        """See `decoding.decoder.Decoder.conversation`."""

    def _steps(
        self, prompt: Sequence[int], max_tokens: int, stop_ids: frozenset[int], stats: Stats
    ) -> Iterator[list[int]]:
        stats.prompt_tokens = len(prompt)
        answer = self.model.answers.pop(0)
        ids = [*self.model.tokenizer.encode(answer), min(stop_ids)][:max_tokens]
        for token in ids:
            stats.add(Step([token], 1, 0, None, 0.1))
            if token is ids[-1]:
                stats.finish = "stop" if token in stop_ids else "length"
            yield [token]


@dataclass
class FakeModel:
    """Answers in their order, and what was asked."""

    answers: list[str]
    asked: list[str] = field(default_factory=list)
    tokenizer: Tokenizer = field(default_factory=lambda: Tokenizer.from_dir(TINY_K3))
    block_size: int = BLOCK
    path: str = "fake"
    config: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(vocab_size=2048, max_position_embeddings=4096)
    )

    def decoder(self, tokens: int, steps: int | None, forced: float) -> FakeDecoder:
        """With room for exactly so many tokens."""
        return FakeDecoder(self, tokens)


def fake_engine(*answers: str) -> Engine:
    """An engine that gives these answers."""
    return Engine(FakeModel(list(answers)), "reference")
