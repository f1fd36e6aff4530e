"""`import kimi`: a loaded model with `generate`, and pure functions for notebooks.

engine = kimi.load()                                   # the small K3 that ships with the library
for text in engine.generate("Tom has 3 apples ..."):   # streams
    print(text, end="")
engine.stats.acceptance_length
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from kimi.assets import TINY_K3
from kimi.config import ModelConfig
from kimi.conversation import Chat, Generation, require_text
from kimi.decoding.engine import Stats, check_ids
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import PREDICTED_TPU_COSTS, Adaptive, CostTable, Fixed, Schedule
from kimi.errors import InputError
from kimi.kernels.experts import ExpertFormat
from kimi.models import PRECISIONS, LoadedModel, capacity_for, open_model
from kimi.progress import announced
from kimi.startup import find_devices
from kimi.text import StreamDecoder, Tokenizer, encode_chat
from kimi.text.chat import Message, Thinking
from kimi.text.display import ChatDisplay
from kimi.values import choice, flag, integer, path, shown, text

if TYPE_CHECKING:  # imported when a model is loaded for the kernels: half a second
    from kimi.runtime.files import KernelModel
    from kimi.runtime.function import DecodeFunction

Backend = Literal["reference", "kernel"]
Verify = Literal["off", "fixed", "adaptive"]
DEFAULT_DTYPE, DEFAULT_EXPERTS = "float32", "mxfp4"
BACKENDS: tuple[Backend, ...] = get_args(Backend)
THINKING: tuple[Thinking, ...] = get_args(Thinking)


class Decodes(Protocol):
    """What both backends' decoders do; see `decoding.engine.Decoder`."""

    capacity: int

    def check_prompt(self, prompt: Sequence[int], max_tokens: int) -> None:
        """Raises InputError for a prompt or a length that cannot be served."""

    def warm_up(self, prompt: Sequence[int], sampling: Sampling, schedule: Schedule | None) -> None:
        """Compiles what such a generation needs."""

    def generate(
        self, prompt: Sequence[int], max_tokens: int, *, sampling: Sampling,
        schedule: Schedule | None, stop_ids: frozenset[int], stats: Stats | None,
    ) -> Iterator[list[int]]:  # fmt: skip
        """Yields the new tokens of every step."""

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, *, sampling: Sampling,
        stop_ids: frozenset[int],
    ) -> Iterator[list[list[int]]]:  # fmt: skip
        """Yields the new tokens of every step, for each of up to 8 prompts."""


@dataclass
class Engine:
    """A loaded model.

    Attributes:
      model: of the backend.
      backend: "reference" is plain JAX and runs anywhere; "kernel" the Pallas kernels, which are
        interpreted where there is no TPU, and then slow.
      stats: of the last generation.
    """

    model: "LoadedModel | KernelModel"
    backend: Backend
    stats: Stats = field(default_factory=Stats)
    _decoders: dict[int, Decodes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Engine({str(self.model.path)!r}, backend={self.backend!r}, "
            f"block_size={self.block_size}, context={self.config.max_position_embeddings})"
        )

    @property
    def config(self) -> ModelConfig:
        """Of the target."""
        return self.model.config

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back."""
        return self.model.tokenizer

    @property
    def block_size(self) -> int:
        """Rows of a drafted block, the newest token's included; 1 without a drafter."""
        return self.model.block_size

    def decoder(self, tokens: int) -> Decodes:
        """A decoder of ids with room for `tokens` tokens, prompt included.

        Raises:
          InputError: more than the model's context.
        """
        made = self.model.decoder(tokens)
        return self._decoders.setdefault(made.capacity, made)

    def encode(
        self, prompt: str | Sequence[int], *, chat: bool = True, system: str | None = None,
        thinking: Thinking = "off",
    ) -> list[int]:  # fmt: skip
        """Ids of a prompt: a user's message in the chat format, plain text, or ids as they are.

        Raises:
          InputError: no such prompt, an id outside the vocabulary, or an option of the chat format
            without it.
        """
        is_text, chat = isinstance(prompt, str), flag("chat", chat)
        choice("thinking", thinking, THINKING)
        if not is_text or not chat:
            found = "plain text" if is_text else "token ids"
            if system is not None:
                raise InputError(f"system: expected a chat, found {found}")
            if thinking != "off":
                raise InputError(f"thinking: expected a chat, found {found}")
        if not isinstance(prompt, str):
            return self._ids(prompt)
        if not chat:
            return self.tokenizer.encode(prompt)
        messages = [*_opening(system), {"role": "user", "content": require_text(prompt)}]
        return encode_chat(messages, self.tokenizer, thinking=thinking)

    def _ids(self, prompt: Sequence[int]) -> list[int]:
        listed = prompt if isinstance(prompt, list | tuple) else [prompt]
        if any(isinstance(message, Mapping) for message in listed):
            raise InputError(
                "prompt: expected a text or token ids, found messages: pass "
                'kimi.text.encode_chat(messages, engine.tokenizer, thinking="off")'
            )
        if isinstance(prompt, bytes | bytearray | memoryview) or not isinstance(prompt, Iterable):
            raise InputError(f"prompt: expected a text or token ids, found {shown(prompt)}")
        return check_ids("prompt", prompt, self.config.vocab_size)

    def generate(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = 256,
        *,
        chat: bool = True,
        system: str | None = None,
        thinking: Thinking = "off",
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        verify: Verify | None = None,
        rows: int | None = None,
        costs: CostTable | None = None,
    ) -> Generation:
        """Generates behind a prompt.

        Args:
          prompt: a message of a user, text with `chat=False`, or token ids.
          max_tokens: at most so many; fewer if the model stops.
          system: message that a chat begins with.
          thinking: effort of a chat: "off", "low", "high" or "max".
          temperature, top_p, top_k, seed: see `decoding.sampling.Sampling`; the default is greedy.
          stop: strings that end the text; it is cut before the first that is completed, and `ids`
            end with the token that completes it.
          verify: drafted rows a step: "off", "fixed" or "adaptive"; default fixed with a drafter.
          rows: of "fixed", default the whole block.
          costs: of "adaptive", default predicted for TPU v7.

        Returns: an iterator over text, which fills `ids` and `stats` as it goes.

        Raises:
          InputError: a value out of range, or a prompt that does not fit the context.
        """
        ids = self.encode(prompt, chat=chat, system=system, thinking=thinking)
        max_tokens = integer("max tokens", max_tokens, 1)
        schedule, stats = self.schedule(verify, rows, costs), Stats()
        steps = self.decoder(len(ids) + max_tokens).generate(
            ids, max_tokens, sampling=Sampling(temperature, top_p, seed, top_k), schedule=schedule,
            stop_ids=self.tokenizer.stop_ids, stats=stats,
        )  # fmt: skip
        shows_chat = chat and isinstance(prompt, str)
        show = (ChatDisplay if shows_chat else StreamDecoder)(self.tokenizer)
        hidden = frozenset() if shows_chat else self.tokenizer.stop_ids
        generation = Generation(steps, show, stats, hidden=hidden, stops=stop)
        self.stats = stats
        return generation

    def chat(
        self, tokens: int, *, system: str | None = None, thinking: Thinking = "off",
        verify: Verify | None = None, rows: int | None = None, costs: CostTable | None = None,
    ) -> Chat:  # fmt: skip
        """A conversation of several turns, see `conversation.Chat`.

        Args:
          tokens: room of the whole conversation.
          system: message that it begins with.
          thinking, verify, rows, costs: of all turns, as of `generate`.

        Raises:
          InputError: more tokens than the model's context, or a value out of range.
        """
        choice("thinking", thinking, THINKING)
        schedule = self.schedule(verify, rows, costs)
        decoder = self.model.decoder(tokens)
        return Chat(decoder, self.tokenizer, schedule, thinking, _opening(system))

    def generate_batch(
        self, prompts: Sequence[str | Sequence[int]], max_tokens: int = 256, *, chat: bool = True,
        system: str | None = None, thinking: Thinking = "off", temperature: float = 0.0,
        top_p: float = 1.0, top_k: int = 0, seed: int = 0,
    ) -> list[list[int]]:  # fmt: skip
        """Token ids generated behind 1 to 8 prompts of any lengths, without drafts.

        With the kernel they run side by side, with the reference one after the other. Prompt i
        draws with `seed` + i. Arguments and errors as of `generate`.
        """
        if isinstance(prompts, str | bytes | Mapping | Set) or not isinstance(prompts, Iterable):
            raise InputError(f"prompts: expected a list of prompts, found {shown(prompts)}")
        encoded = [self.encode(p, chat=chat, system=system, thinking=thinking) for p in prompts]
        if not encoded:
            raise InputError("prompts: expected at least one, found none")
        max_tokens = integer("max tokens", max_tokens, 1)
        sampling = Sampling(temperature, top_p, seed, top_k)
        decoder = self.decoder(max(map(len, encoded)) + max_tokens)
        found: list[list[int]] = [[] for _ in encoded]
        with announced(f"generating behind {len(encoded)} prompts"):
            for step in decoder.generate_batch(
                encoded, max_tokens, sampling=sampling, stop_ids=self.tokenizer.stop_ids
            ):
                for ids, new in zip(found, step, strict=True):
                    ids += new
        return found

    def decode_function(
        self, tokens: int, *, steps: int = 8, temperature: float = 0.0, top_p: float = 1.0,
        top_k: int = 0, seed: int = 0, verify: Verify | None = None, rows: int | None = None,
        costs: CostTable | None = None,
    ) -> "DecodeFunction":  # fmt: skip
        """Drafted decoding as a pure function of weights, state and request, for `jax.jit`.

        Args:
          tokens: room of a sequence, prompt included.
          steps: of draft and verification a call, at most.
          temperature, top_p, top_k, seed, verify, rows, costs: as of `generate`; "off" is no choice
            here.

        Raises:
          InputError: the reference's backend, no drafter, or a value out of range.
        """
        from kimi.runtime.blocks import BlockPrograms
        from kimi.runtime.function import DecodeFunction

        if isinstance(self.model, LoadedModel):
            raise InputError(
                "decode_function: expected the backend 'kernel', found 'reference': load with "
                "backend='kernel'"
            )
        schedule = self.schedule(verify, rows, costs)
        if schedule is None:
            raise InputError(
                "decode_function: expected a drafter and verification 'fixed' or 'adaptive', found "
                f"{verify or 'no drafter'!r}"
            )
        steps = integer("steps", steps, 1)
        capacity = capacity_for(self.config, tokens)
        programs = BlockPrograms(self.model.placed, capacity, steps)
        return DecodeFunction(
            programs, capacity, Sampling(temperature, top_p, seed, top_k), schedule
        )

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

    def schedule(
        self, verify: Verify | None, rows: int | None = None, costs: CostTable | None = None
    ) -> Schedule | None:
        """The schedule of the options of `generate`; None is plain decoding.

        Raises:
          InputError: options that contradict each other, or no drafter.
        """
        if verify is None:
            verify = "fixed" if self.block_size > 1 else "off"
        if not isinstance(verify, str) or verify not in get_args(Verify):
            raise InputError(
                f"verify: expected 'off', 'fixed' or 'adaptive', found {shown(verify)}"
            )
        if rows is not None and verify != "fixed":
            raise InputError(f"rows: expected verification 'fixed', found {verify!r}")
        if costs is not None and verify != "adaptive":
            raise InputError(f"costs: expected verification 'adaptive', found {verify!r}")
        if verify == "off":
            return None
        if self.block_size == 1:
            raise InputError(f"{self.model.path}: expected a drafter, found none")
        if verify == "adaptive":
            return Adaptive(PREDICTED_TPU_COSTS if costs is None else costs)
        rows = self.block_size if rows is None else integer("rows", rows)
        if not 1 <= rows <= self.block_size:
            raise InputError(
                f"rows: expected a number from 1 to {self.block_size} (block_size), found {rows}"
            )
        return Fixed(rows)


def _opening(system: str | None) -> list[Message]:
    """The messages that a chat begins with."""
    return [] if system is None else [{"role": "system", "content": text("system", system)}]


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
