"""Calibration of the drafter's confidence: its log odds x become a x + b (Platt scaling).

That is a change of two tensors of the confidence head, so that the calibrated drafter has the same
format and the same drafts.
"""

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from kimi.decoding.calibration import Calibration
from kimi.lab.train.judge import calibration_prompts, judge_of
from kimi.lab.train.run import Run
from kimi.lab.train.weights import load_drafter, read_tensors, save_model
from kimi.reference.draft import Dspark
from kimi.reference.tensors import draft_tensor_name

_LARGEST = 15.0  # log odds beyond this carry no information, only leverage
_NEWTON_STEPS = 50


def fit(log_odds: NDArray[np.float64], accepted: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope a and offset b that make sigmoid(a x + b) the most likely explanation.

    Args:
      log_odds: [R] of the confidence head.
      accepted: [R] what became of the drafts; at least one of each outcome, or there is no best fit
        and the identity is returned.
    """
    if accepted.all() or not accepted.any():
        return 1.0, 0.0
    x, y = np.clip(log_odds, -_LARGEST, _LARGEST), accepted.astype(float)
    design = np.stack([x, np.ones_like(x)], 1)
    line = np.array([1.0, 0.0])
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-design @ line))
        gradient = design.T @ (p - y)
        hessian = (design * (p * (1 - p) + 1e-6)[:, None]).T @ design
        line = line - np.linalg.solve(hessian, gradient)
    return float(line[0]), float(line[1])


def rescale(drafter: Dspark, a: float, b: float) -> None:
    """Makes the confidence head's log odds a x + b, rounded to bfloat16 as they are stored."""
    proj = drafter.confidence_head.proj
    for param, value in (
        (proj.weight, a * proj.weight[...]),
        (proj.bias, a * proj.bias[...] + b),
    ):
        param[...] = value.astype(jnp.bfloat16).astype(param.dtype)


def error(log_odds: NDArray[np.float64], accepted: NDArray[np.bool_]) -> float:
    """Expected calibration error of sigmoid(log odds): 0 is perfect."""
    rows = np.zeros(len(log_odds), int)
    return Calibration(rows, 1 / (1 + np.exp(-log_odds)), accepted).expected_error


def calibrate(run: Run) -> None:
    """Rescales the drafter of `run.drafter_file` and writes `run.calibrated_file`."""
    drafter = load_drafter(read_tensors(run.drafter_file), run.draft_config)
    judge = judge_of(run)
    replays = [judge.replay(drafter, prompts) for prompts in calibration_prompts(run)]
    log_odds = np.concatenate([r.confidence for r in replays])
    accepted = np.concatenate([r.accepted for r in replays])
    a, b = fit(log_odds, accepted)
    print(
        f"calibration: {len(log_odds)} drafts, slope {a:.3f}, offset {b:.3f}, error "
        f"{error(log_odds, accepted):.4f} -> {error(a * log_odds + b, accepted):.4f}",
        flush=True,
    )
    rescale(drafter, a, b)
    save_model(drafter, run.calibrated_file, draft_tensor_name)
