"""`generate`: decodes a prompt and streams the text."""

import argparse
import sys
from dataclasses import dataclass

from kimi.api import BACKENDS, Decodes, Engine, load
from kimi.assets import TINY_K3
from kimi.cli.console import print_json, working
from kimi.decoding.engine import Stats
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import CostTable, Schedule
from kimi.errors import InputError
from kimi.kernels.experts import ExpertFormat
from kimi.models import PRECISIONS
from kimi.text import StreamDecoder, parse_response
from kimi.text.chat import Thinking
from kimi.text.display import ChatDisplay

THINKING: tuple[Thinking, ...] = ("off", "low", "high", "max")


def add_model_options(p: argparse.ArgumentParser, drafter: bool = True) -> None:
    """Options that say which model is run by what."""
    p.add_argument("--model", default=str(TINY_K3), help="folder or hub id (default: small K3)")
    if drafter:
        p.add_argument(
            "--draft-model", help="the drafter's folder or hub id (default: MODEL/dspark)"
        )
    p.add_argument(
        "--backend", choices=BACKENDS,
        help="reference: plain JAX, anywhere; kernel: the Pallas kernels, interpreted (slow) where "
        "there is no TPU (default: kernel on a TPU, else reference)",
    )  # fmt: skip
    p.add_argument("--ranks", type=int, help="devices of the kernel (default: all TPU cores, or 1)")
    p.add_argument(
        "--experts", choices=tuple(ExpertFormat), default="mxfp4",
        help="format of the kernel's experts in memory",
    )  # fmt: skip
    p.add_argument("--store", help="weights for the kernel that `preshard` wrote")
    p.add_argument("--dtype", choices=tuple(PRECISIONS), default="float32", help="of the reference")


def open_engine(args: argparse.Namespace, draft: bool) -> Engine:
    """The model of the options."""
    drafter = args.draft_model if draft else None
    return load(
        args.model, drafter=drafter, draft=draft, backend=args.backend, dtype=args.dtype,
        ranks=args.ranks, experts=args.experts, store=args.store,
    )  # fmt: skip


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("prompt", help="what to say to the model; - reads standard input")
    add_model_options(p)
    p.add_argument(
        "--draft", action=argparse.BooleanOptionalAction, default=True, help="use the drafter"
    )
    p.add_argument(
        "--verify", choices=("off", "fixed", "adaptive"), default="fixed",
        help="rows verified a step: none drafted, always --rows, or by confidence and cost",
    )  # fmt: skip
    p.add_argument("--rows", type=int, help="rows of --verify fixed (default: the whole block)")
    p.add_argument(
        "--costs", help="cost table of --verify adaptive, as `costs` writes it "
        "(default: predicted for TPU v7)",
    )  # fmt: skip
    p.add_argument("--raw", action="store_true", help="continue the prompt as plain text, no chat")
    p.add_argument("--system", help="system message of a chat")
    p.add_argument("--thinking", choices=THINKING, default="off", help="thinking effort of a chat")
    p.add_argument("--max-tokens", type=int, default=256)
    p.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    p.add_argument("--top-p", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument(
        "--compare", action="store_true",
        help="also decode plainly, and say whether the tokens are the same (greedy only)",
    )  # fmt: skip
    p.add_argument("--json", action="store_true", help="one JSON object instead of streamed text")


@dataclass
class Result:
    """Ids generated and how it went."""

    ids: list[int]
    stats: Stats


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    sampling = Sampling(args.temperature, args.top_p, args.seed)
    if args.compare and not sampling.greedy:
        raise InputError("--compare: expected --temperature 0: sampled outputs differ by chance")
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    with working("loading the model"):
        engine = open_engine(args, args.draft)
    prompt = _encode(text, args, engine)
    if not prompt:
        raise InputError("prompt: expected some text, found none")
    decoder = engine.decoder(len(prompt) + max(1, args.max_tokens))
    schedule = _schedule(args, engine)
    decoder.check_prompt(prompt, args.max_tokens)
    with working("compiling"):
        decoder.warm_up(prompt, sampling, schedule)
        if args.compare and schedule is not None:
            decoder.warm_up(prompt, sampling, None)
    result = _generate(decoder, prompt, args, engine, sampling, schedule)
    plain = None
    if args.compare:
        plain = Result([], Stats())
        for ids in decoder.generate(
            prompt, args.max_tokens, sampling=sampling, schedule=None,
            stop_ids=engine.tokenizer.stop_ids, stats=plain.stats,
        ):  # fmt: skip
            plain.ids += ids
    if args.json:
        print_json(_report(result, plain, args, engine))
    else:
        _print_summary(result, plain)


def _encode(text: str, args: argparse.Namespace, engine: Engine) -> list[int]:
    if args.raw and args.system is not None:
        raise InputError("--system: expected a chat, found --raw")
    return engine.encode(text, chat=not args.raw, system=args.system, thinking=args.thinking)


def _schedule(args: argparse.Namespace, engine: Engine) -> Schedule | None:
    """The verification asked for; None is plain decoding."""
    if args.rows is not None and args.verify != "fixed":
        raise InputError(f"--rows: expected --verify fixed, found --verify {args.verify}")
    if args.costs is not None and args.verify != "adaptive":
        raise InputError(f"--costs: expected --verify adaptive, found --verify {args.verify}")
    if not args.draft or args.verify == "off":
        return None
    if engine.block_size == 1:
        raise InputError(
            f"{engine.model.path}: expected a drafter in dspark/ or --draft-model, found none "
            "(--no-draft decodes without)"
        )
    costs = CostTable.load(args.costs) if args.costs else None
    return engine.schedule(args.verify, args.rows, costs)


def _generate(
    decoder: Decodes, prompt: list[int], args: argparse.Namespace, engine: Engine,
    sampling: Sampling, schedule: Schedule | None,
) -> Result:  # fmt: skip
    result = Result([], Stats())
    show = StreamDecoder(engine.tokenizer) if args.raw else ChatDisplay(engine.tokenizer)
    for ids in decoder.generate(
        prompt, args.max_tokens, sampling=sampling, schedule=schedule,
        stop_ids=engine.tokenizer.stop_ids, stats=result.stats,
    ):  # fmt: skip
        result.ids += ids
        if not args.json:
            text = [i for i in ids if i not in engine.tokenizer.stop_ids] if args.raw else ids
            print(show.push(text), end="", flush=True)
    if not args.json:
        print(show.finish())
    return result


def _report(
    result: Result, plain: Result | None, args: argparse.Namespace, engine: Engine
) -> dict[str, object]:
    s = result.stats
    report: dict[str, object] = {
        "text": engine.tokenizer.decode(result.ids),
        "ids": result.ids,
        "finish": s.finish,
        "prompt_tokens": s.prompt_tokens,
        "tokens": s.tokens,
        "steps": s.steps,
        "acceptance_length": round(s.acceptance_length, 4),
        "verified_rows": sum(step.rows for step in s.history),
        "prefill_seconds": round(s.prefill_seconds, 4),
        "first_token_seconds": round(s.first_token_seconds, 4),
        "decode_seconds": round(s.decode_seconds, 4),
        "tokens_per_second": round(s.tokens_per_second, 2),
    }
    if not args.raw:
        parsed = parse_response(
            result.ids, engine.tokenizer, start="response" if args.thinking == "off" else "think"
        )
        report |= {"think": parsed.think, "response": parsed.response}
    if plain is not None:
        report["identical_to_plain"] = plain.ids == result.ids
        report["plain_tokens_per_second"] = round(plain.stats.tokens_per_second, 2)
    return report


def _print_summary(result: Result, plain: Result | None) -> None:
    s = result.stats
    lines = [
        "",
        f"tokens/s:               {s.tokens_per_second:.1f}  ({s.tokens} tokens, "
        f"{s.decode_seconds:.2f} s; prompt: {s.prompt_tokens} in {s.prefill_seconds:.2f} s)",
        f"time to first token:    {s.first_token_seconds:.2f} s",
        f"steps:                  {s.steps}  (ended by: {s.finish})",
        f"mean acceptance length: {s.acceptance_length:.2f} tokens a step",
    ]
    if plain is not None:
        same = "yes" if plain.ids == result.ids else "no"
        lines += [
            f"plain decoding:         {plain.stats.tokens_per_second:.1f} tokens/s",
            f"identical to plain greedy decoding: {same}",
        ]
    print("\n".join(lines), file=sys.stderr if not sys.stdout.isatty() else sys.stdout)
