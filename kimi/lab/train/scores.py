"""Quick scores of a finished run for its log, batched; `eval/` measures the exported files."""

import json

import jax.numpy as jnp
import numpy as np

from kimi.lab.train import packing, prompts
from kimi.lab.train.calibration import error
from kimi.lab.train.dialogue import answer_sentence
from kimi.lab.train.judge import Judge, judge_of
from kimi.lab.train.run import Run
from kimi.lab.train.target import make_row_losses
from kimi.lab.train.weights import load_drafter, read_tensors


def answered(judge: Judge, count: int) -> float:
    """Share of held-out two-step problems whose greedy response ends with the right answer."""
    tokenizer = judge.run.tokenizer
    asked = prompts.problem_prompts(count, tokenizer)
    out = judge.answer([ids for ids, _ in asked])
    right = 0
    for row, (_, answer) in enumerate(asked):
        reply = tokenizer.decode(out.ids[row, out.prompts[row] : out.lengths[row]].tolist())
        right += f"{answer_sentence(answer)}<|close|>" in reply
    return right / count


def prose_loss(judge: Judge, length: int, batch: int) -> float:
    """Mean loss on the held-out prose in rows of `length` targets, nats a token.

    Rows go through the model `batch` at a time; those that do not fill a batch are left out.
    """
    rows = packing.split_rows(judge.run.prose.val, length + 1)
    row_losses = make_row_losses(judge.target, judge.run.config)
    starts = range(0, len(rows) - batch + 1, batch)
    losses = [
        np.asarray(row_losses(judge.weights, jnp.asarray(rows[at : at + batch]))) for at in starts
    ]
    return float(np.mean(losses))


def report(run: Run) -> None:
    """Prints the scores of the target and the calibrated drafter; writes `run.scores_file`."""
    judge, sizes, tokenizer = judge_of(run), run.recipe.scores, run.tokenizer
    scores = {
        "right_answers": answered(judge, sizes.answers),
        "prose_nats": prose_loss(judge, sizes.prose, sizes.rows),
    }
    drafter = load_drafter(read_tensors(run.calibrated_file), run.draft_config)
    sets = {
        "problems": [ids for ids, _ in prompts.problem_prompts(sizes.prompts, tokenizer)],
        "stories": prompts.story_prompts(sizes.prompts, tokenizer),
        "prose": prompts.prose_prompts(sizes.prompts),
    }
    replays = {name: judge.replay(drafter, asked) for name, asked in sets.items()}
    scores |= {f"{name}_acceptance": r.acceptance_length for name, r in replays.items()}
    scores["calibration_error"] = error(
        np.concatenate([r.confidence for r in replays.values()]),
        np.concatenate([r.accepted for r in replays.values()]),
    )
    for name, score in scores.items():
        print(f"scores: {name} {score:.4f}", flush=True)
    run.scores_file.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
