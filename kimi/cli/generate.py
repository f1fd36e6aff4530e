"""`generate`: decodes prompts and streams the text."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi.answer import Answer
from kimi.api import BACKENDS, DEFAULT_DTYPE, DEFAULT_EXPERTS, Engine, Verify, load
from kimi.assets import TINY_K3
from kimi.benchmark.prompts import read_prompts
from kimi.cli.answers import add_answer_options, answer_options, brief, compiling_told
from kimi.cli.console import print_json, read_text, working
from kimi.conversation import Prompt
from kimi.decoding.schedule import Adaptive, CostTable, Fixed
from kimi.errors import InputError
from kimi.kernels.experts import ExpertFormat
from kimi.models import PRECISIONS


def add_model_options(p: argparse.ArgumentParser, drafter: bool = True) -> None:
    """Options that say which model is run by what."""
    p.add_argument("--model", default=str(TINY_K3), help="folder or hub id (default: small K3)")
    if drafter:
        add_drafter_option(p)
    p.add_argument(
        "--backend", choices=BACKENDS,
        help="reference: plain JAX, anywhere; kernel: the Pallas kernels, interpreted (slow) where "
        "there is no TPU (default: kernel on a TPU, else reference)",
    )  # fmt: skip
    p.add_argument("--ranks", type=int, help="devices of the kernel (default: all TPU cores, or 1)")
    p.add_argument(
        "--experts", choices=tuple(ExpertFormat),
        help=f"format of the kernel's experts in memory (default: {DEFAULT_EXPERTS})",
    )  # fmt: skip
    p.add_argument("--store", help="weights for the kernel that `preshard` wrote")
    p.add_argument(
        "--dtype", choices=PRECISIONS, help=f"of the reference (default: {DEFAULT_DTYPE})"
    )


def add_drafter_option(p: argparse.ArgumentParser) -> None:
    """The option that says which drafter is used."""
    p.add_argument(
        "--drafter", "--draft-model", metavar="DRAFTER",
        help="the drafter's folder or hub id (default: MODEL/dspark)",
    )  # fmt: skip


def open_engine(args: argparse.Namespace, draft: bool) -> Engine:
    """The model of the options, of which those left open are filled in."""
    engine = load(
        args.model, drafter=getattr(args, "drafter", None), draft=draft, backend=args.backend,
        dtype=args.dtype, ranks=args.ranks, experts=args.experts, store=args.store,
    )  # fmt: skip
    args.dtype, args.experts = args.dtype or DEFAULT_DTYPE, args.experts or DEFAULT_EXPERTS
    return engine


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    source = p.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "prompt",
        nargs="?",
        help="what to say to the model; - reads standard input, without its last line end",
    )
    source.add_argument(
        "--prompts", type=Path, metavar="FILE",
        help='one prompt a line, or .jsonl with "prompt" or "ids"; answers come in this order',
    )  # fmt: skip
    add_model_options(p)
    p.add_argument(
        "--draft", action=argparse.BooleanOptionalAction, default=True, help="use the drafter"
    )
    p.add_argument(
        "--verify", choices=("off", "fixed", "adaptive"),
        help="rows verified a step: none drafted, always --rows, or by confidence and cost "
        "(default: fixed)",
    )  # fmt: skip
    p.add_argument("--rows", type=int, help="rows of --verify fixed (default: the whole block)")
    p.add_argument(
        "--costs", help="cost table of --verify adaptive, as `costs` writes it "
        "(default: predicted for TPU v7)",
    )  # fmt: skip
    p.add_argument("--raw", action="store_true", help="continue the prompt as plain text, no chat")
    add_answer_options(p)
    p.add_argument(
        "--compare", action="store_true",
        help="also decode plainly, and say whether the tokens are the same (greedy only)",
    )  # fmt: skip
    p.add_argument(
        "--json", action="store_true", help="a JSON object an answer instead of streamed text"
    )


@dataclass
class Asked:
    """A prompt and what is generated behind it; `plain` by plain decoding, for comparison."""

    prompt: Prompt
    drafted: Answer
    plain: Answer | None


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    options = answer_options(args)
    _check_contradictions(args)
    drafts = args.draft and args.verify != "off"
    verify = _verify(args)
    prompts = read_prompts(args.prompts) if args.prompts else [_one_prompt(args)]
    with working("loading the model"):
        engine = open_engine(args, drafts)
    if drafts and engine.block_size == 1:
        raise InputError(
            f"{engine.model.path}: expected a drafter in dspark/ or --drafter, found none "
            "(--no-draft decodes without)"
        )
    options |= {"chat": not args.raw, "system": args.system}
    options |= {} if args.thinking is None else {"thinking": args.thinking}
    # All are checked before the first is answered.
    asked = [
        Asked(
            prompt,
            engine.generate(prompt, verify=verify, **options),
            engine.generate(prompt, verify="off", **options) if args.compare else None,
        )
        for prompt in prompts
    ]
    for number, one in enumerate(asked, 1):
        if args.prompts and not args.json:
            print(f"--- {number} of {len(asked)} ---", flush=True)
        _answer(one, engine, args)


def _verify(args: argparse.Namespace) -> Verify:
    """What is verified, read before anything is loaded."""
    if not args.draft or args.verify == "off":
        return "off"
    if args.costs:
        return Adaptive(CostTable.load(args.costs))
    if args.rows is not None:
        return Fixed(args.rows)
    verify: Verify = args.verify or "fixed"
    return verify


def _check_contradictions(args: argparse.Namespace) -> None:
    """What can be said before anything is loaded. Raises InputError."""
    drafts = args.draft and args.verify != "off"
    plain = "--no-draft" if not args.draft else "--verify off"
    verify = f"--verify {args.verify or 'fixed'}" if args.draft else plain
    if args.verify not in (None, "off") and not args.draft:
        raise InputError(f"--verify {args.verify}: expected --draft, found --no-draft")
    if args.rows is not None and verify != "--verify fixed":
        raise InputError(f"--rows: expected --verify fixed, found {verify}")
    if args.costs is not None and verify != "--verify adaptive":
        raise InputError(f"--costs: expected --verify adaptive, found {verify}")
    for name in ("drafter", "compare"):
        if getattr(args, name) and not drafts:
            raise InputError(f"--{name}: expected drafted decoding, found {plain}")
    if args.compare and args.temperature:
        raise InputError("--compare: expected --temperature 0: sampled outputs differ by chance")
    for name in ("system", "thinking"):
        if getattr(args, name) is not None and args.raw:
            raise InputError(f"--{name}: expected a chat, found --raw")


def _one_prompt(args: argparse.Namespace) -> str:
    text: str = args.prompt
    if text == "-":
        if sys.stdin is not None and sys.stdin.isatty():
            print("reading from the terminal; end with Ctrl-D", file=sys.stderr)
        text = read_text().removesuffix("\n")
    if not text or (not args.raw and not text.strip()):
        raise InputError("prompt: expected some text, found none")
    return text


def _answer(asked: Asked, engine: Engine, args: argparse.Namespace) -> None:
    """Writes an answer as it comes, and then how it went."""
    with compiling_told():
        for text in asked.drafted:
            if not args.json:
                print(text, end="", flush=True)
        if not args.json:
            print(flush=True)
        if asked.plain is not None:
            asked.plain.run()
    if args.json:
        print_json(_report(asked, engine, args))
    elif args.prompts:
        print("\n".join([brief(asked.drafted.stats), *_comparison(asked)]), file=sys.stderr)
    else:
        _print_summary(asked)


def _report(asked: Asked, engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    s, ids = asked.drafted.stats, asked.drafted.ids
    report: dict[str, Any] = {"prompt": asked.prompt} if args.prompts else {}
    report |= {
        "text": engine.tokenizer.decode(ids),
        "ids": ids,
        "finish_reason": asked.drafted.finish_reason,
        "prompt_tokens": s.prompt_tokens,
        "tokens": s.tokens,
        "steps": s.steps,
        "acceptance_length": round(s.acceptance_length, 4),
        "verified_rows": sum(step.rows for step in s.history),
        "prefill_seconds": round(s.prefill_seconds, 4),
        "first_token_seconds": round(s.first_token_seconds, 4),
        "decode_seconds": round(s.decode_seconds, 4),
        "compile_seconds": round(s.compile_seconds, 4),
        "tokens_per_second": round(s.tokens_per_second, 2),
    }
    if asked.drafted.is_chat:
        answer = asked.drafted
        report |= {"think": answer.reasoning, "response": answer.text}
        if answer.tool_calls:
            report["tool_calls"] = answer.tool_calls
    if asked.plain is not None:
        report["identical_to_plain"] = asked.plain.ids == ids
        report["plain_tokens_per_second"] = round(asked.plain.stats.tokens_per_second, 2)
    return report


def _print_summary(asked: Asked) -> None:
    s = asked.drafted.stats
    lines = [
        "",
        f"tokens/s:               {s.tokens_per_second:.1f}  ({s.tokens} tokens, "
        f"{s.decode_seconds:.2f} s; prompt: {s.prompt_tokens} in {s.prefill_seconds:.2f} s)",
        f"time to first token:    {s.first_token_seconds:.2f} s  (compiling, apart: "
        f"{s.compile_seconds:.2f} s)",
        f"steps:                  {s.steps}  (ended by: {s.finish})",
        f"mean acceptance length: {s.acceptance_length:.2f} tokens a step",
        *_comparison(asked),
    ]
    print("\n".join(lines), file=sys.stderr)


def _comparison(asked: Asked) -> list[str]:
    if asked.plain is None:
        return []
    same = "yes" if asked.plain.ids == asked.drafted.ids else "no"
    return [
        f"plain decoding:         {asked.plain.stats.tokens_per_second:.1f} tokens/s",
        f"identical to plain greedy decoding: {same}",
    ]
