"""XLA on the CPU as the loader wants it: each call runs in the thread that makes it."""

import os

import jax


def run_in_callers() -> None:
    """Keeps XLA's own threads out of re-encoding. To be called before jax is used.

    The loader's workers already occupy all processors. Handing their work to XLA's pool, which cuts
    it into small tasks, takes two to three times as much of the processors. It would slow down
    other programs on the CPU, so only commands that do nothing else there call this.

    `kimi.load` does not, and `startup` does not either: libtpu reads the variable as well, and may
    size by it the threads that feed the TPU; XLA has no such switch for one backend or one
    program. Only FP8 read from the checkpoint's own files pays for it; MXFP4 is laid out
    without XLA, and a store holds what is laid out.
    """
    os.environ["PJRT_NPROC"] = "1"
    jax.config.update("jax_cpu_enable_async_dispatch", False)
