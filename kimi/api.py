"""`import kimi`: a loaded model with `generate`, and pure functions for notebooks.

engine = kimi.load()                                   # the small K3 that ships with the library
for text in engine.generate("Tom has 3 apples ..."):   # streams
    print(text, end="")
engine.stats.acceptance_length
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import numpy as np
import numpy.typing as npt

from kimi.answer import Answer, Channel
from kimi.assets import TINY_K3
from kimi.config import ModelConfig
from kimi.conversation import Chat, ChatFormat, Prompt
from kimi.decoding.checks import check_ids
from kimi.decoding.decoder import Decoder
from kimi.decoding.function import DecodeFunction
from kimi.decoding.sampling import Sampling, SamplingOptions
from kimi.decoding.schedule import PREDICTED_TPU_COSTS, Adaptive, CostTable, Fixed, Schedule
from kimi.decoding.stats import Stats
from kimi.decoding.timing import measure_costs
from kimi.errors import InputError
from kimi.kernels.experts import ExpertFormat
from kimi.models import PRECISIONS, Model, open_model
from kimi.progress import announced
from kimi.startup import find_devices
from kimi.text import Tokenizer
from kimi.text.chat import Message, Thinking
from kimi.values import choice, flag, integer, number, path, shown

Backend = Literal["reference", "kernel"]
VerifyName = Literal["off", "fixed", "adaptive"]
Verify = VerifyName | Schedule
DEFAULT_DTYPE, DEFAULT_EXPERTS = "float32", "mxfp4"
BACKENDS: tuple[Backend, ...] = get_args(Backend)
_COST_TOKENS = 64  # that stand before the steps whose cost is measured


@dataclass
class Engine:
    """A loaded model.

    Attributes:
      model: with what runs it.
      backend: "reference" is plain JAX and runs anywhere; "kernel" the Pallas kernels, which are
        interpreted where there is no TPU, and then slow.
      steps_per_call: of the device loop; default 8 with the kernels and 1 with the reference.
      forced_acceptance: for timing only: tokens per drafted step to pretend, whatever the target
        says; what is generated is then no text. 0 is off.
      stats: of the last generation.
    """

    model: Model
    backend: Backend
    steps_per_call: int | None = None
    forced_acceptance: float = 0.0
    stats: Stats = field(default_factory=Stats)

    def __repr__(self) -> str:
        return (
            f"Engine({str(self.model.path)!r}, backend={self.backend!r}, "
            f"block_size={self.block_size}, context={self.config.max_position_embeddings})"
        )

    @property
    def config(self) -> ModelConfig:
        """The target model's config."""
        return self.model.config

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back."""
        return self.model.tokenizer

    @property
    def block_size(self) -> int:
        """Rows of a drafted block, the newest token's included; 1 without a drafter."""
        return self.model.block_size

    def encode(
        self, prompt: Prompt, *, chat: bool = True, system: str | None = None,
        tools: Sequence[Message] | None = None, thinking: Thinking = "off",
    ) -> list[int]:  # fmt: skip
        """Ids of a prompt, as `generate` makes them. Arguments and errors as of `generate`."""
        format = ChatFormat(chat, system, tools, thinking=thinking)
        return format.encode(prompt, self.tokenizer, self.config.vocab_size)[0]

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int = 256,
        *,
        sampling: Sampling | None = None,
        verify: Verify | None = None,
        chat: bool = True,
        system: str | None = None,
        tools: Sequence[Message] | None = None,
        thinking: Thinking = "off",
        stop: str | Sequence[str] = (),
        stop_ids: Iterable[int] | None = None,
        context: int | None = None,
        **sampled: Unpack[SamplingOptions],
    ) -> Answer:
        """Generates behind a prompt.

        Args:
          prompt: a message of a user, messages in the shape of chat completions, text with
            `chat=False`, or token ids.
          max_tokens: at most so many; fewer if the model stops.
          sampling: default greedy. Its fields may be given as keywords instead: `temperature`,
            `top_p`, `top_k`, `seed`.
          verify: drafted rows a step: "off"; "fixed", the whole block; "adaptive", by costs
            predicted for TPU v7; or a `Fixed` or `Adaptive` of your own. Default "fixed" with a
            drafter.
          chat: False continues the prompt as plain text.
          system: message that the conversation begins with.
          tools: declarations of functions, in the shape of chat completions.
          thinking: effort of a chat: "off", "low", "high" or "max".
          stop: strings that end the text; it is cut before the first that is completed, and `ids`
            end with the token that completes it.
          stop_ids: ids that end the generation; default the model's.
          context: room in tokens that is compiled for; default what is needed. Generations of one
            room share their programs.

        Returns: an iterator over text, which fills `ids` and `stats` as it goes.

        Raises:
          InputError: a value out of range, or a prompt that does not fit the context.
        """
        format = ChatFormat(chat, system, tools, thinking=thinking)
        ids, channel = format.encode(prompt, self.tokenizer, self.config.vocab_size)
        max_tokens = integer("max tokens", max_tokens, 1)
        stats = Stats()
        steps = self.decoder(_room(context, len(ids) + max_tokens)).generate(
            ids, max_tokens, sampling=_sampling(sampling, sampled), stats=stats,
            schedule=self.schedule(verify), stop_ids=self._stop_ids(stop_ids),
        )  # fmt: skip
        answer = Answer(steps, self.tokenizer, channel, stats, stops=stop)
        self.stats = stats
        return answer

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int = 256,
        *,
        sampling: Sampling | None = None,
        verify: Verify = "off",
        chat: bool = True,
        system: str | None = None,
        tools: Sequence[Message] | None = None,
        thinking: Thinking = "off",
        stop: str | Sequence[str] = (),
        context: int | None = None,
        **sampled: Unpack[SamplingOptions],
    ) -> list[Answer]:
        """Answers to 1 to 8 prompts of any lengths, decoded side by side.

        Prompt i draws with `seed` + i. Arguments and errors as of `generate`. With drafts the
        sequences share the rows of a step; the kernels draft for one sequence only.
        """
        if isinstance(prompts, str | bytes | Mapping | Set) or not isinstance(prompts, Iterable):
            raise InputError(f"prompts: expected a list of prompts, found {shown(prompts)}")
        format = ChatFormat(chat, system, tools, thinking=thinking)
        encoded = [format.encode(p, self.tokenizer, self.config.vocab_size) for p in prompts]
        if not encoded:
            raise InputError("prompts: expected at least one, found none")
        max_tokens = integer("max tokens", max_tokens, 1)
        stats = [Stats() for _ in encoded]
        found: list[list[int]] = [[] for _ in encoded]
        room = _room(context, max(len(ids) for ids, _ in encoded) + max_tokens)
        with announced(f"generating behind {len(encoded)} prompts"):
            for step in self.decoder(room).generate_batch(
                [ids for ids, _ in encoded], max_tokens, sampling=_sampling(sampling, sampled),
                schedule=self.schedule(verify), stop_ids=self.tokenizer.stop_ids, stats=stats,
            ):  # fmt: skip
                for ids, new in zip(found, step, strict=True):
                    ids += new
        self.stats = stats[-1]
        return [
            Answer(iter([ids]), self.tokenizer, channel, own, stops=stop).run()
            for ids, (_, channel), own in zip(found, encoded, stats, strict=True)
        ]

    def chat(
        self, tokens: int, *, verify: Verify | None = None, system: str | None = None,
        tools: Sequence[Message] | None = None, thinking: Thinking = "off",
    ) -> Chat:  # fmt: skip
        """A conversation of several turns, see `conversation.Chat`.

        Args:
          tokens: room of the whole conversation.
          verify, system, tools, thinking: of all turns, as of `generate`.

        Raises:
          InputError: more tokens than the model's context, or a value out of range.
        """
        format, schedule = ChatFormat(True, system, tools, thinking=thinking), self.schedule(verify)
        decoder = self.decoder(tokens)
        kept = decoder.conversation(schedule is not None)

        def answer(
            ids: list[int], channel: Channel, max_tokens: int, *, turn: Any, at_end: Any,
            sampling: Sampling | None = None, stop: str | Sequence[str] = (),
            **sampled: Unpack[SamplingOptions],
        ) -> Answer:  # fmt: skip
            stats = Stats()
            steps = decoder.generate(
                ids, max_tokens, sampling=_sampling(sampling, sampled), schedule=schedule,
                stop_ids=self.tokenizer.stop_ids, stats=stats, conversation=kept,
            )  # fmt: skip
            return Answer(turn(steps), self.tokenizer, channel, stats, stops=stop, at_end=at_end)

        return Chat(answer, self.tokenizer, format, decoder.capacity)

    def decode_function(
        self, tokens: int, *, steps: int = 8, sampling: Sampling | None = None,
        verify: Verify | None = None, **sampled: Unpack[SamplingOptions],
    ) -> DecodeFunction:  # fmt: skip
        """Drafted decoding as a pure function of weights, state and request, for `jax.jit`.

        Args:
          tokens: room of a sequence, prompt included.
          steps: of draft and verification a call, at most.
          sampling, verify: as of `generate`; "off" is no choice here.

        Raises:
          InputError: no drafter, or a value out of range.
        """
        schedule = self.schedule(verify)
        if schedule is None:
            raise InputError(
                "decode_function: expected a drafter and verification 'fixed' or 'adaptive', found "
                f"{verify or 'no drafter'!r}"
            )
        decoder = self.model.decoder(tokens, integer("steps", steps, 1))
        return DecodeFunction(
            decoder.programs(), decoder.capacity, _sampling(sampling, sampled), schedule
        )

    def decoder(self, tokens: int) -> Decoder:
        """A decoder of ids with room for `tokens` tokens, prompt included.

        Raises:
          InputError: more than the model's context, or a value out of range.
        """
        steps = self.steps_per_call
        steps = None if steps is None else integer("steps per call", steps, 1)
        forced = number("forced acceptance", self.forced_acceptance)
        return self.model.decoder(tokens, steps, forced)

    def measure_costs(
        self, prompt: Prompt | None = None, *, rows: Iterable[int] | None = None,
        context: int = 512,
    ) -> CostTable:  # fmt: skip
        """Times this machine: milliseconds of a draft and of verifying each number of rows.

        The same table on all hosts.

        Args:
          prompt: what stands before the steps; default some tokens.
          rows: numbers of rows; default 1, 2, 4, 8 and the block.
          context: room in tokens.

        Raises:
          InputError: no drafter.
        """
        ids = [i % self.config.vocab_size for i in range(1, _COST_TOKENS + 1)]
        if prompt is not None:
            ids = self.encode(prompt)
        return measure_costs(self.decoder(context), ids, rows)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits behind each id, float32 [T, vocab].

        Raises:
          InputError: no ids, one outside the vocabulary, or more than the model's context.
        """
        found = check_ids("ids", ids, self.config.vocab_size)
        if not found:
            raise InputError("ids: expected at least one token id, found none")
        with announced("compiling and computing the logits"):
            return self.model.logits(found)

    def schedule(self, verify: Verify | None) -> Schedule | None:
        """The schedule of `verify`, see `generate`; None is plain decoding.

        Raises:
          InputError: no such choice, more rows than the block has, or no drafter.
        """
        if verify is None:
            verify = "fixed" if self.block_size > 1 else "off"
        if isinstance(verify, str) and verify in get_args(VerifyName):
            if verify == "off":
                return None
            verify = (
                Adaptive(PREDICTED_TPU_COSTS) if verify == "adaptive" else Fixed(self.block_size)
            )
        elif not isinstance(verify, Fixed | Adaptive):
            raise InputError(
                "verify: expected 'off', 'fixed', 'adaptive', a Fixed or an Adaptive, found "
                f"{shown(verify)}"
            )
        if self.block_size == 1:
            raise InputError(f"{self.model.path}: expected a drafter, found none")
        if isinstance(verify, Fixed) and verify.count > self.block_size:
            raise InputError(
                f"rows: expected a number from 1 to {self.block_size} (block_size), found "
                f"{verify.count}"
            )
        return verify

    def _stop_ids(self, stop_ids: Iterable[int] | None) -> frozenset[int]:
        if stop_ids is None:
            return self.tokenizer.stop_ids
        return frozenset(check_ids("stop ids", list(stop_ids), self.config.vocab_size))


def _room(context: int | None, needed: int) -> int:
    """Tokens to compile for. Raises InputError for a context that is too small."""
    return needed if context is None else integer("context", context, needed)


def _sampling(sampling: Sampling | None, options: SamplingOptions) -> Sampling:
    """The sampling of an object or of keywords. Raises InputError for both, or a bad value."""
    if sampling is None:
        return Sampling(**options)
    if options:
        raise InputError(f"{next(iter(options))}: expected it within sampling, found both")
    if not isinstance(sampling, Sampling):
        raise InputError(f"sampling: expected a Sampling, found {shown(sampling)}")
    return sampling


def load(
    model: str | Path = TINY_K3,
    *,
    drafter: str | Path | None = None,
    draft: bool = True,
    backend: Backend | None = None,
    dtype: str | None = None,
    ranks: int | None = None,
    experts: str | None = None,
    store: str | Path | None = None,
) -> Engine:
    """Loads a model.

    Args:
      model: a folder in the public checkpoint's layout, or a hub id; default the small K3 that
        ships with the library.
      drafter: folder or hub id; default `dspark/` in the model's folder, if there is one.
      draft: False loads no drafter, and takes none.
      backend: "kernel" or "reference"; default the kernel on a TPU, the reference elsewhere.
      dtype: of the reference, "float32" (default) or "bfloat16". The kernel has its own rounding.
      ranks: of the kernel, how many devices; default all TPU cores, and 1 elsewhere.
      experts: format of the kernel's experts in memory, "mxfp4" (default) or "fp8".
      store: of the kernel, weights that `python -m kimi preshard` wrote for this model, number of
        ranks and format; default reads the model's own files.

    Raises:
      KimiError: one clear line about what is wrong with which file or option.
    """
    devices = find_devices()
    if backend is None:
        backend = "kernel" if devices[0].platform == "tpu" else "reference"
    choice("backend", backend, BACKENDS)
    kernels_own = {"ranks": ranks, "experts": experts, "store": store}
    for name, value in ({"dtype": dtype} if backend == "kernel" else kernels_own).items():
        if value is not None:
            other = "reference" if backend == "kernel" else "kernel"
            raise InputError(f"{name}: expected the backend '{other}', found '{backend}'")
    model = path("model", model)
    drafter = None if drafter is None else path("drafter", drafter)
    if not flag("draft", draft) and drafter is not None:
        raise InputError("drafter: expected draft=True, found False")
    dtype = DEFAULT_DTYPE if dtype is None else dtype
    experts = DEFAULT_EXPERTS if experts is None else experts
    choice("dtype", dtype, PRECISIONS)
    choice("experts", experts, tuple(ExpertFormat))
    with announced(f"loading {model}"):
        if backend == "reference":
            return Engine(open_model(model, drafter=drafter, draft=draft, dtype=dtype), backend)
        from kimi.runtime.files import open_kernel_model

        found = open_kernel_model(
            model, drafter=drafter, draft=draft, experts=ExpertFormat(experts),
            ranks=None if ranks is None else integer("ranks", ranks, 1),
            store=None if store is None else Path(path("store", store)),
        )  # fmt: skip
        return Engine(found, backend)
