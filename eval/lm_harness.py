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
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kimi.api import Engine, load
from kimi.cli.cluster import join_cluster
from kimi.cli.console import counting, print_json
from kimi.cli.generate import THINKING, add_model_options, open_engine
from kimi.cli.options import Parser
from kimi.cli.program import run_program
from kimi.errors import InputError
from kimi.files import check_writable, write_text
from kimi.text import parse_response
from kimi.text.chat import Thinking

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:
    print("error: expected lm-eval (install the extra 'harness')", file=sys.stderr)
    sys.exit(2)

NAME = "kimi-k3"
_IGNORED = {"until", "max_gen_toks", "max_tokens", "do_sample", "temperature", "top_p", "seed"}


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
        if unknown := options.keys() - _IGNORED:
            raise InputError(f"{sorted(unknown)[0]}: expected one of {sorted(_IGNORED)}, found it")
        until = options.get("until") or []
        until = [until] if isinstance(until, str) else until
        sampled = bool(options.get("do_sample", False))
        generation = self.engine.generate(
            self.engine.encode(context, chat=self.chat, thinking=self.thinking),
            options.get("max_gen_toks") or options.get("max_tokens") or self.max_tokens,
            temperature=float(options.get("temperature", 1.0)) if sampled else 0.0,
            top_p=float(options.get("top_p", 1.0)), seed=int(options.get("seed", 0)),
        )  # fmt: skip
        text = ""
        for piece in generation:
            text += piece
            # The engine has its own stop ids; a text's end can be seen only in its text. In a chat
            # stop strings of a plain continuation ("Question:") may stand among the thoughts.
            if not self.chat and any(stop in text for stop in until):
                break
        if self.chat:
            text = parse_response(
                generation.ids, self.engine.tokenizer,
                start="response" if self.thinking == "off" else "think",
            ).response  # fmt: skip
        ends = [text.find(stop) for stop in until if stop and stop in text]
        return text[: min(ends)] if ends else text

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log probability (nats) of each continuation, and whether greedy decoding writes it."""
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
        """Log probability (nats) of each whole text, behind the token that begins a text."""
        found = []
        with counting("scoring", len(requests)) as advance:
            for request in requests:
                ids = self.engine.tokenizer.encode(request.args[0])
                found.append(self._score([self._first], [self._first, *ids])[0])
                advance()
        return found

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
        limit = self.engine.config.max_position_embeddings
        if len(whole) > limit:
            raise InputError(f"text: expected at most {limit} tokens, found {len(whole)}")
        wanted = np.asarray(whole[len(ids) :])
        logits = self.engine.logits(whole[:-1])[len(ids) - 1 :]
        chosen = logits[np.arange(len(wanted)), wanted]
        return float((chosen - _log_sum(logits)).sum()), bool((logits.argmax(-1) == wanted).all())


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
    if args.thinking != "off" and not args.chat:
        raise InputError("--thinking: expected --chat beside it, found none")
    join_cluster()
    found = evaluate(args)
    try:
        print_json(found)
    finally:
        if args.json:
            write_text(args.json, json.dumps(found, indent=1, default=str) + "\n")


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Task -> figures of the harness."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    model = KimiModel(
        open_engine(args, draft=True), chat=args.chat, thinking=args.thinking,
        max_tokens=args.max_tokens,
    )  # fmt: skip
    found = simple_evaluate(
        model, tasks=args.tasks, num_fewshot=args.num_fewshot, limit=args.limit,
        task_manager=TaskManager(include_path=args.include), log_samples=False,
    )  # fmt: skip
    results: dict[str, Any] = found["results"]
    return results


if __name__ == "__main__":
    sys.exit(main())
