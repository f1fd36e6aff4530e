"""Start-up, from the command to the first word, measured in processes of their own."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass

from kimi.errors import InputError, KimiError
from kimi.startup import CACHE_DIR

PROMPT = "Tom has 3 apples and buys 4 more. How many has he?"
_COMPILED, _READ = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_hits"


@dataclass(frozen=True)
class Start:
    """Seconds of wall time; the phases make up `total`.

    Attributes:
      imports: from the start of the process until the library is there.
      loading: weights, drafter and tokenizer.
      compiling: of programs, or reading them from the cache.
      prompt: reading it.
      first: the first step.
      rest: what else there is, until the first text is there.
      total: from the start of the process to the first text.
      compiled: programs that were compiled.
      read: programs that were read from the cache.
    """

    imports: float
    loading: float
    compiling: float
    prompt: float
    first: float
    rest: float
    total: float
    compiled: int
    read: int


def measure(model: str) -> dict[str, Start]:
    """A first run, with nothing in the cache ("cold"), and one after it ("warm").

    Args:
      model: a folder or a hub id.

    Raises:
      InputError: the model cannot be loaded.
    """
    own = ("JAX_COMPILATION_CACHE_DIR", CACHE_DIR)
    clean = {name: value for name, value in os.environ.items() if name not in own}
    with tempfile.TemporaryDirectory(prefix="kimi-bench-") as folder:
        return {name: _run(model, clean | {CACHE_DIR: folder}) for name in ("cold", "warm")}


def _run(model: str, environment: dict[str, str]) -> Start:
    command = [sys.executable, "-m", "kimi.lab.bench.start", model, repr(time.time())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with exit code {done.returncode}"]
        raise InputError(lines[-1])
    return Start(**json.loads(done.stdout.splitlines()[-1]))


def _start(model: str, begin: float) -> Start:
    """What is measured, in a process that began at `begin` (seconds since the epoch)."""
    import jax

    import kimi.api
    from kimi.decoding.kept import READ_EVENT

    seen: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
    jax.monitoring.register_event_time_span_listener(lambda event, *_, **__: seen.append(event))
    imported = time.time()
    engine = kimi.api.load(model)
    _ = engine.tokenizer
    loaded = time.time()
    answer = engine.generate(PROMPT, 8)
    next(iter(answer))
    end, stats = time.time(), answer.stats
    first = stats.first_token_seconds - stats.prefill_seconds
    known = stats.compile_seconds + stats.first_token_seconds
    jaxs, kept = seen.count(_READ), seen.count(READ_EVENT)
    return Start(
        imports=imported - begin, loading=loaded - imported, compiling=stats.compile_seconds,
        prompt=stats.prefill_seconds, first=first, rest=end - loaded - known, total=end - begin,
        compiled=seen.count(_COMPILED) - jaxs, read=jaxs + kept,
    )  # fmt: skip


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(_start(sys.argv[1], float(sys.argv[2])))))
    except KimiError as error:
        sys.exit(str(error))
