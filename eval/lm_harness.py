"""Tasks of lm-evaluation-harness with this engine (extra `harness`).

    python eval/lm_harness.py --tasks gsm8k --model /data/Kimi-K3 --chat --thinking max
    python eval/lm_harness.py --tasks my_task --include my_tasks/        # tasks of your own

Importing this module registers the engine with the harness as the model `kimi-k3`, so that
`lm_eval.simple_evaluate(model="kimi-k3", model_args=...)` knows it too; arguments are those of
`kimi.load`, and `chat`, `thinking` and `max_tokens`.
"""

from kimi.process import begin  # isort: skip

if __name__ == "__main__":
    begin()  # before imports that take long

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kimi.api import Engine, load
from kimi.cli.cluster import join_cluster
from kimi.cli.console import counting, print_json
from kimi.cli.generate import add_model_options, open_engine
from kimi.cli.options import Parser
from kimi.cli.program import run_program
from kimi.conversation import THINKING
from kimi.errors import InputError, missing
from kimi.files import check_writable, json_text, write_text
from kimi.text import parse_response
from kimi.text.chat import Thinking
from kimi.values import flag, integer, number, shown

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:
    print(f"error: {missing('lm-eval', 'harness')}", file=sys.stderr)
    sys.exit(2)

NAME = "kimi-k3"
# Names that the harness' own adapters take for the same, the first of them first.
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_KNOWN = {"until", "do_sample", "temperature", "top_p", "top_k", "seed", *_LENGTHS}


@register_model(NAME)
class KimiModel(LM):
    """The engine as the harness sees it.

    Args:
      engine: a loaded model; default one that is loaded with `options`.
      chat: put the task's text as a user's message, and give back the response channel; otherwise
        the text is continued as it is.
      thinking: effort of a chat.
      max_tokens: of an answer, where the task does not say.
      options: of `kimi.load`.

    Raises:
      InputError: see `kimi.load`.
    """

    def __init__(
        self, engine: Engine | None = None, *, chat: bool = False, thinking: Thinking = "off",
        max_tokens: int = 1024, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        for name in ("batch_size", "max_batch_size", "device"):  # the harness adds its own
            options.pop(name, None)
        self.engine = load(**options) if engine is None else engine
        self.chat, self.thinking, self.max_tokens = chat, thinking, max_tokens
        self._has_cut = False

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """One text for each request, up to the first of its stop strings."""
        found = []
        with counting("generating", len(requests)) as advance:
            for request in requests:
                context, options = request.args
                found.append(self._generate(context, dict(options)))
                self.cache_hook.add_partial("generate_until", request.args, found[-1])
                advance()
        return found

    def _generate(self, context: str, options: dict[str, Any]) -> str:
        until, tokens, sampling = _generation_options(options, self.max_tokens)
        if not tokens:
            return ""
        ids = self._encode(context) or [self._first]
        try:
            answer = self.engine.generate(ids, tokens, **sampling)
        except InputError:
            if (room := self._context - tokens) >= len(ids) or room < 1:
                raise
            answer = self.engine.generate(self._cut(context, ids, room), tokens, **sampling)
        text = ""
        for piece in answer:
            text += piece
            # The engine has its own stop ids; a text's end can be seen only in its text. In a chat
            # stop strings of a plain continuation ("Question:") may stand among the thoughts.
            if not self.chat and any(stop in text for stop in until):
                break
        if self.chat:
            text = parse_response(
                answer.ids, self.engine.tokenizer,
                start="response" if self.thinking == "off" else "think",
            ).response  # fmt: skip
        ends = [text.find(stop) for stop in until if stop in text]
        return text[: min(ends)] if ends else text

    def _encode(self, context: str) -> list[int]:
        return self.engine.encode(context, chat=self.chat, thinking=self.thinking)

    def _cut(self, context: str, ids: list[int], room: int) -> list[int]:
        """The ids of a context without its beginning, so that they fit; a chat stays one."""
        self._say_cut(len(ids), room)
        if not self.chat:
            return ids[-room:]
        own = self.engine.tokenizer.encode(context)
        while len(ids) > room:
            own = own[len(ids) - room :]
            ids = self._encode(self.engine.tokenizer.decode(own))
        return ids

    def _say_cut(self, found: int, room: int) -> None:
        if not self._has_cut:
            warnings.warn(
                f"context: expected at most {room} tokens ({self._context} with the answer, "
                f"max_position_embeddings), found {found}: the beginning of this one, and of all "
                "that are too long, is cut off",
                stacklevel=2,
            )
        self._has_cut = True

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log probability (nats) of each continuation, and whether greedy decoding writes it.

        Where the two together are longer than the context, the beginning is left out.
        """
        found = []
        with counting("scoring", len(requests)) as advance:
            for request in requests:
                context, continuation = request.args
                ids, whole = self._split(context, continuation)
                found.append(self._score(ids, whole))
                self.cache_hook.add_partial("loglikelihood", request.args, found[-1])
                advance()
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Log probability (nats) of each whole text, behind the token that begins a text.

        A text longer than the context is scored in windows, as by the harness' own adapters.
        """
        found = []
        with counting("scoring", len(requests)) as advance:
            for request in requests:
                found.append(self._roll(self.engine.tokenizer.encode(request.args[0])))
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
                advance()
        return found

    def _roll(self, ids: list[int]) -> float:
        """Of ids in windows of the whole context: each id once, behind as many as there is room."""
        whole, total = [self._first, *ids], 0.0
        for start in range(1, len(whole), self._context):
            window = whole[: start + self._context][-self._context - 1 :]
            scored = min(self._context, len(whole) - start)
            total += self._score(window[:-scored], window)[0]
        return total

    @property
    def _context(self) -> int:
        return self.engine.config.max_position_embeddings

    @property
    def _first(self) -> int:
        return self.engine.tokenizer.special.bos

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of the context, and of both together; spaces between belong to the continuation."""
        if self.chat:
            raise InputError("loglikelihood: expected a task that generates, as --chat is given")
        stripped = context.rstrip()
        continuation = context[len(stripped) :] + continuation
        ids = self.engine.tokenizer.encode(stripped) if stripped else [self._first]
        own = self.engine.tokenizer.encode(stripped + continuation)
        whole = own if stripped else [self._first, *own]
        if whole[: len(ids)] != ids or len(whole) == len(ids):  # a token spans the border
            whole = [*ids, *self.engine.tokenizer.encode(continuation)]
        return ids, whole

    def _score(self, ids: Sequence[int], whole: Sequence[int]) -> tuple[float, bool]:
        wanted = np.asarray(whole[len(ids) :])
        if not len(wanted):
            return 0.0, True
        if len(wanted) > self._context:
            raise InputError(
                f"continuation: expected at most {self._context} tokens, found {len(wanted)}"
            )
        if len(whole) > self._context + 1:  # the last id is not read
            self._say_cut(len(ids), self._context + 1 - len(wanted))
        logits = self.engine.logits(whole[:-1][-self._context :])[-len(wanted) :]
        chosen = logits[np.arange(len(wanted)), wanted]
        return float((chosen - _log_sum(logits)).sum()), bool((logits.argmax(-1) == wanted).all())


def _generation_options(
    options: dict[str, Any], max_tokens: int
) -> tuple[list[str], int, dict[str, Any]]:
    """Stop strings, tokens and sampling of a task's `generation_kwargs`; None is as if absent."""
    if unknown := options.keys() - _KNOWN:
        raise InputError(f"{sorted(unknown)[0]}: expected one of {sorted(_KNOWN)}, found it")
    given = {name: value for name, value in options.items() if value is not None}
    until = given.get("until", [])
    until = [until] if isinstance(until, str) else until
    if not isinstance(until, list | tuple) or not all(isinstance(stop, str) for stop in until):
        raise InputError(f"until: expected a text or a list of texts, found {shown(until)}")
    name = next((name for name in _LENGTHS if name in given), "max_tokens")
    tokens = integer(name, given.get(name, max_tokens), 0)
    # As the harness reads them: a temperature asks for sampling, unless do_sample says otherwise.
    temperature = number("temperature", given.get("temperature", 0.0))
    if "do_sample" in given:
        sampled = flag("do_sample", given["do_sample"])
        temperature = number("temperature", given.get("temperature", 1.0)) if sampled else 0.0
    sampling = {"temperature": temperature, "top_p": given.get("top_p", 1.0)}
    sampling["seed"] = given.get("seed", 0)
    return (
        [stop for stop in until if stop], tokens,
        sampling | ({"top_k": given["top_k"]} if "top_k" in given else {}),
    )  # fmt: skip


def _log_sum(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Logarithm of the sum of exponentials of each row."""
    wide = logits.astype(np.float64)
    highest = wide.max(-1, keepdims=True)
    return highest[..., 0] + np.log(np.exp(wide - highest).sum(-1))


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    p = Parser(description=__doc__.split("\n")[0])
    add_model_options(p)
    p.add_argument("--tasks", nargs="+", required=True, help="names of tasks")
    p.add_argument("--include", help="folder with tasks of your own")
    p.add_argument("--chat", action="store_true", help="put each text as a user's message")
    p.add_argument("--thinking", choices=THINKING, default="off", help="of --chat")
    p.add_argument("--num-fewshot", type=int, help="default: as the task says")
    p.add_argument("--limit", type=int, help="only the first so many texts of a task")
    p.add_argument("--max-tokens", type=int, default=1024, help="where the task does not say")
    p.add_argument("--json", help="write the results to this file")
    return p


def main() -> int:
    """Runs the script; returns its exit code."""
    args = build_parser().parse_args()
    return run_program(lambda: _run(args), args.verbose)


def _run(args: argparse.Namespace) -> None:
    if args.json:
        check_writable(args.json)
    integer("--max-tokens", args.max_tokens, 1)
    for option in ("limit", "num_fewshot"):
        if getattr(args, option) is not None:
            name = "--" + option.replace("_", "-")
            integer(name, getattr(args, option), option == "limit")
    if args.thinking != "off" and not args.chat:
        raise InputError("--thinking: expected --chat beside it, found none")
    join_cluster()
    found = evaluate(args)
    try:
        print_json(found)
    finally:
        if args.json:
            write_text(args.json, json_text(found, indent=1, default=str) + "\n")


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Task -> figures of the harness."""
    from lm_eval import simple_evaluate

    manager = _find_tasks(args.tasks, args.include)
    model = KimiModel(
        open_engine(args, draft=True), chat=args.chat, thinking=args.thinking,
        max_tokens=args.max_tokens,
    )  # fmt: skip
    found = simple_evaluate(
        model, tasks=args.tasks, num_fewshot=args.num_fewshot, limit=args.limit,
        task_manager=manager, log_samples=False,
    )  # fmt: skip
    results: dict[str, Any] = found["results"]
    return results


def _find_tasks(names: list[str], include: str | None) -> Any:
    """The harness' manager of tasks, once it has loaded these, before any model is.

    Raises:
      InputError: no such task or folder, or its data cannot be had.
    """
    from huggingface_hub.utils import logging
    from lm_eval.tasks import TaskManager

    if include is not None and not Path(include).is_dir():
        raise InputError(f"--include: {include}: expected a folder, found none")
    logging.set_verbosity_error()  # every attempt to reach the hub would be a line
    manager = TaskManager(include_path=include)
    for name in names:
        if name not in manager.task_index and not Path(name).is_file():
            raise InputError(
                f"--tasks: expected names of the harness (lm-eval ls tasks lists them), of "
                f"--include, or files, found {name!r}"
            )
    try:
        manager.load(names)
    except Exception as e:  # of the hub, of the library for data sets, of the system
        reason = (str(e).split("\n")[0] or type(e).__name__)[:300]
        raise InputError(f"--tasks: {' '.join(names)}: cannot be loaded: {reason}") from e
    return manager


if __name__ == "__main__":
    sys.exit(main())
