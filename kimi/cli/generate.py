"""`generate`: decodes a prompt and streams the text."""

import argparse
import sys
from dataclasses import dataclass

import jax

from kimi.cli.console import print_json, working
from kimi.decoding.engine import Decoder, Stats
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import PREDICTED_TPU_COSTS, Adaptive, CostTable, Fixed, Schedule
from kimi.errors import InputError
from kimi.models import PRECISIONS, LoadedModel, open_model
from kimi.text import StreamDecoder, encode_chat, parse_response
from kimi.text.chat import Thinking
from kimi.text.display import ChatDisplay
from kimi.tiny import ASSETS

THINKING: tuple[Thinking, ...] = ("off", "low", "high", "max")


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("prompt", help="what to say to the model; - reads standard input")
    p.add_argument("--model", default=str(ASSETS), help="folder or hub id (default: small K3)")
    p.add_argument("--draft-model", help="the drafter's folder or hub id (default: MODEL/dspark)")
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
    p.add_argument("--dtype", choices=tuple(PRECISIONS), default="float32")
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
        model = open_model(args.model, drafter=args.draft_model, draft=args.draft, dtype=args.dtype)
    prompt = _encode(text, args, model)
    if not prompt:
        raise InputError("prompt: expected some text, found none")
    decoder = model.decoder(len(prompt) + args.max_tokens)
    schedule = _schedule(args, model)
    decoder.check_prompt(prompt, args.max_tokens)
    with working("compiling"):
        _warm_up(decoder, prompt, sampling, schedule)
        if args.compare and schedule is not None:
            _warm_up(decoder, prompt, sampling, None)
    result = _generate(decoder, prompt, args, model, sampling, schedule)
    plain = None
    if args.compare:
        plain = Result([], Stats())
        for ids in decoder.generate(
            prompt, args.max_tokens, stop_ids=model.tokenizer.stop_ids, stats=plain.stats
        ):
            plain.ids += ids
    if args.json:
        print_json(_report(result, plain, args, model))
    else:
        _print_summary(result, plain)


def _encode(text: str, args: argparse.Namespace, model: LoadedModel) -> list[int]:
    if args.raw:
        if args.system is not None:
            raise InputError("--system: expected a chat, found --raw")
        return model.tokenizer.encode(text)
    if not text.strip():
        raise InputError("prompt: expected some text, found none")
    messages: list[dict[str, object]] = [{"role": "user", "content": text}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    return encode_chat(messages, model.tokenizer, thinking=args.thinking)


def _schedule(args: argparse.Namespace, model: LoadedModel) -> Schedule | None:
    """The verification asked for; None is plain decoding."""
    if args.rows is not None and args.verify != "fixed":
        raise InputError(f"--rows: expected --verify fixed, found --verify {args.verify}")
    if args.costs is not None and args.verify != "adaptive":
        raise InputError(f"--costs: expected --verify adaptive, found --verify {args.verify}")
    if not args.draft or args.verify == "off":
        return None
    if model.drafter is None:
        raise InputError(
            f"{model.path}: expected a drafter in dspark/ or --draft-model, found none "
            "(--no-draft decodes without)"
        )
    if args.verify == "adaptive":
        return Adaptive(CostTable.load(args.costs) if args.costs else PREDICTED_TPU_COSTS)
    block = model.drafter.config.block_size
    rows = block if args.rows is None else args.rows
    if not 1 <= rows <= block:
        raise InputError(f"--rows: expected a number from 1 to {block} (block_size), found {rows}")
    return Fixed(rows)


def _warm_up(
    decoder: Decoder, prompt: list[int], sampling: Sampling, schedule: Schedule | None
) -> None:
    """Compiles what the generation needs, so that its speed is the machine's."""
    context = decoder.prefill(prompt[:-1], decoder.empty_context())
    widths = {1}
    if isinstance(schedule, Fixed):
        widths = {schedule.count}
    elif isinstance(schedule, Adaptive):
        widths = set(schedule.costs.rows)
    if schedule is not None:
        jax.block_until_ready(decoder.draft(prompt[-1], context))
    for width in sorted(widths):
        _, _, context = decoder.verify([prompt[-1]] * width, context, sampling)


def _generate(
    decoder: Decoder, prompt: list[int], args: argparse.Namespace, model: LoadedModel,
    sampling: Sampling, schedule: Schedule | None,
) -> Result:  # fmt: skip
    result = Result([], Stats())
    show = StreamDecoder(model.tokenizer) if args.raw else ChatDisplay(model.tokenizer)
    for ids in decoder.generate(
        prompt, args.max_tokens, sampling=sampling, schedule=schedule,
        stop_ids=model.tokenizer.stop_ids, stats=result.stats,
    ):  # fmt: skip
        result.ids += ids
        if not args.json:
            text = [i for i in ids if i not in model.tokenizer.stop_ids] if args.raw else ids
            print(show.push(text), end="", flush=True)
    if not args.json:
        print(show.finish())
    return result


def _report(
    result: Result, plain: Result | None, args: argparse.Namespace, model: LoadedModel
) -> dict[str, object]:
    s = result.stats
    report: dict[str, object] = {
        "text": model.tokenizer.decode(result.ids),
        "ids": result.ids,
        "finish": s.finish,
        "prompt_tokens": s.prompt_tokens,
        "tokens": s.tokens,
        "steps": s.steps,
        "acceptance_length": round(s.acceptance_length, 4),
        "verified_rows": sum(step.rows for step in s.history),
        "prefill_seconds": round(s.prefill_seconds, 4),
        "decode_seconds": round(s.decode_seconds, 4),
        "tokens_per_second": round(s.tokens_per_second, 2),
    }
    if not args.raw:
        parsed = parse_response(
            result.ids, model.tokenizer, start="response" if args.thinking == "off" else "think"
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
