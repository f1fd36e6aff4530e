"""Ctrl-C ends a program wherever it is: within 2 s, with one line, exit code 130, no traceback."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests import waiting

BUSY = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'x', b'y', 10**9)"  # in C, for minutes
CASES = {
    "in Python": "time.sleep(60)",
    "in a compiler": BUSY,
    "swallowed": """
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
        """,
    "turned into another error": """
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            raise ImportError('initialization failed')
        """,
    "in a finalizer": """
        class Slow:
            def __del__(self): time.sleep(60)
        Slow()
        time.sleep(60)
        """,
    "with a thread that does not end": """
        import threading
        threading.Thread(target=time.sleep, args=(60,)).start()
        time.sleep(60)
        """,
    "with a thread that fails after it": """
        import threading
        def fail(): time.sleep(60) if not event.wait() else 1 / 0
        event = threading.Event()
        thread = threading.Thread(target=fail); thread.start()
        try:
            time.sleep(60)
        finally:
            event.set(); thread.join()
        """,
    "in an import": """
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            sys.path.insert(0, folder)
            with open(f'{folder}/slow.py', 'w') as file:
                file.write('import os, time\\ntry: time.sleep(60)\\n')
                file.write('except BaseException: os.abort()')
            import slow
        """,
    "at exit": "import atexit; atexit.register(time.sleep, 60); sys.exit(0)",
    "half a line of output": "print('half', end=''); time.sleep(60)",
}

ENV = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}


def start(code: str, *by: str) -> subprocess.Popen[str]:
    """A program that has said that it is ready.

    Args:
      by: the command that starts it, if another does.
    """
    head = "import sys, time; from kimi.process import *; begin(); print('ready', flush=True)\n"
    program = subprocess.Popen(
        [*by, sys.executable, "-c", head + textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV,
    )  # fmt: skip
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    time.sleep(0.1)
    return program


def end(program: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error, at the latest after a generous minute."""
    out, err = program.communicate(timeout=waiting.limit(10))
    return program.returncode, out, err


@pytest.mark.parametrize("code", CASES.values(), ids=CASES)
def test_ctrl_c_ends_the_program(code):
    program = start(code)
    program.send_signal(signal.SIGINT)
    returned, out, err = end(program)
    assert (returned, err) == (130, "interrupted\n")
    assert out == ("half" if "half" in code else "")


def test_an_interruption_that_is_handled_ends_nothing():
    code = """
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            handled()
        time.sleep(GRACE_SECONDS * 1.5)
        print('went on')
        """
    program = start(code)
    program.send_signal(signal.SIGINT)
    assert end(program) == (0, "went on\n", "")


def test_a_block_is_stopped_first_and_the_program_by_the_second():
    code = f"""
        with stoppable() as stopped:
            while not stopped(): time.sleep(0.01)
            print('stopped', flush=True)
            time.sleep(GRACE_SECONDS * 1.5)
            print('waits', flush=True)
            {BUSY}
        """
    program = start(code)
    program.send_signal(signal.SIGINT)
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in range(2)] == ["stopped\n", "waits\n"]
    program.send_signal(signal.SIGINT)
    assert end(program) == (130, "", "interrupted\n")


def test_a_stoppable_block_in_a_compiler_ends_the_program():
    program = start(f"with stoppable():\n    {BUSY}")
    program.send_signal(signal.SIGINT)
    assert end(program) == (130, "", "interrupted\n")


def test_a_job_in_the_background_of_a_shell_ignores_it():
    program = start("time.sleep(0.3); print('done')", "bash", "-c", 'trap "" INT; exec "$0" "$@"')
    program.send_signal(signal.SIGINT)
    assert end(program) == (0, "done\n", "")


def test_a_bug_shows_its_traceback_and_says_so():
    returned, _, err = end(start("1 / 0"))
    assert returned == 1 and "ZeroDivisionError" in err
    assert err.splitlines()[-1].startswith("this is a bug in kimi-k3-tpu ")


def test_a_child_by_fork_is_on_its_own():
    code = """
        import os, signal
        if not (child := os.fork()):
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(3)
        os.waitpid(child, 0)
        time.sleep(GRACE_SECONDS * 1.5)
        print('went on')
        """
    returned, out, err = end(start(code))
    assert (returned, out) == (0, "went on\n") and "Traceback" in err


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.3, 1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    "argv",
    [
        ["-m", "kimi", "generate", "hi", "--max-tokens", "200"],
        ["-m", "kimi", "aot", "--rows", "1"],
        ["eval/gsm8k.py", "--count", "9", "--out", "answers.jsonl"],
    ],
    ids=lambda argv: argv[-3],
)
def test_ctrl_c_ends_real_programs(argv, seconds, tmp_path):
    """Imports, loading, compiling and decoding, whichever is going on by then."""
    root = Path(__file__).parents[2]
    if argv[0] != "-m":
        argv = [str(root / argv[0]), *argv[1:]]
    program = subprocess.Popen(
        [sys.executable, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=tmp_path, env=ENV | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    time.sleep(seconds)
    if program.poll() is None:
        program.send_signal(signal.SIGINT)
        returned, _, err = end(program)
        assert returned == 130 and err.splitlines()[-1].startswith("interrupted")
        assert "Traceback" not in err
