"""What several hosts that run one evaluation must know of each other."""

import hashlib
import json
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from kimi.errors import InputError


def agree(done: Collection[int], jobs: int, settings: dict[str, Any]) -> list[int]:
    """The jobs that are left, on all hosts the same: only the first one has the file of answers.

    Args:
      done: jobs that are done; counts on the first host only.
      jobs: how many there are.
      settings: of this host's run.
    Raises:
      InputError: this host has other settings than the first one.
    """
    mask = np.zeros(jobs, np.uint8)
    mask[[job for job in done if job < jobs]] = 1
    own = json.dumps([jobs, settings], sort_keys=True)
    digest = np.frombuffer(hashlib.sha256(own.encode()).digest(), np.uint8)
    if jax.process_count() > 1:
        first = np.asarray(multihost_utils.broadcast_one_to_all(digest))
        if not np.array_equal(first, digest):
            raise InputError(
                f"host {jax.process_index()}: its options, data or model are not those of host 0: "
                f"found {own}"
            )
        mask = np.asarray(multihost_utils.broadcast_one_to_all(mask))
    return np.flatnonzero(mask == 0).tolist()
