"""Around the work: streams closed, full or of another encoding, and what becomes of errors."""

import os
import sys

import pytest

from kimi.cli.program import run_program
from kimi.errors import InputError
from tests import waiting

HEAD = "from kimi.process import begin; begin()\nimport sys\nfrom kimi.cli.program import *\n"


def shell(code: str, redirect: str = "", **env: str) -> tuple[int, str, str]:
    """Exit code and both streams of a program that a shell starts."""
    done = waiting.run(
        ["bash", "-c", f'"$0" -c "$1" {redirect}', sys.executable, HEAD + code],
        env=os.environ | env,
    )
    return done.returncode, done.stdout, done.stderr


SHORT = "sys.exit(run_program(lambda: print('found')))"
LONG = "sys.exit(run_program(lambda: print('x' * 1_000_000)))"
SAVED = """
def body():
    try: print('x' * 1_000_000)
    finally: print('saved', file=sys.stderr)
sys.exit(run_program(body))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("code", [SHORT, LONG], ids=["short", "long"])
def test_a_full_disk_under_standard_output(code, unbuffered):
    line = "error: standard output: cannot be written: No space left on device\n"
    assert shell(code, ">/dev/full", PYTHONUNBUFFERED=unbuffered) == (1, "", line)


def test_a_result_is_saved_though_it_cannot_be_printed():
    _, _, err = shell(SAVED, ">/dev/full")
    assert err.splitlines()[0] == "saved" and "No space left" in err.splitlines()[1]


def test_closed_standard_output_is_told_before_the_work():
    line = "error: standard output: expected it open, found it closed\n"
    assert shell("sys.exit(run_program(lambda: 1 / 0))", ">&-") == (2, "", line)


def test_closed_standard_error_does_not_write_into_files(tmp_path):
    code = f"""
def body():
    with open({str(tmp_path / "x")!r}, "w") as file:
        print("warning", file=sys.stderr); print("found"); file.write("result")
sys.exit(run_program(body))
"""
    assert shell(code, "2>&- <&-") == (0, "found\n", "")
    assert (tmp_path / "x").read_text() == "result"


def test_a_reader_that_has_seen_enough_is_no_error():
    returned, out, err = shell(LONG, "| head -c 3; exit ${PIPESTATUS[0]}")
    assert (returned, out, err) == (1, "xxx", "")


def test_characters_that_the_encoding_lacks():
    code = "sys.exit(run_program(lambda: print('naïve 🙂')))"
    assert shell(code, PYTHONIOENCODING="ascii") == (0, "na\\xefve \\U0001f642\n", "")
    assert shell(code, PYTHONIOENCODING="ascii:replace") == (0, "na?ve ?\n", "")


def test_a_current_folder_that_is_gone(tmp_path):
    code = f"import os; os.mkdir({str(tmp_path / 'x')!r}); os.chdir({str(tmp_path / 'x')!r})\n"
    code += "os.rmdir(os.getcwd()); sys.exit(run_program(lambda: print(os.path.abspath('y'))))"
    line = "error: current folder: expected it to exist, found it removed\n"
    assert shell(code) == (2, "", line)


def test_errors_are_one_line(capsys):
    def missing() -> None:
        open("/no/such")

    def wrong() -> None:
        raise InputError("x: expected y, found z")

    assert run_program(missing) == 2
    assert capsys.readouterr().err == "error: /no/such: No such file or directory\n"
    assert run_program(wrong) == 2
    assert capsys.readouterr().err == "error: x: expected y, found z\n"
    assert run_program(wrong, verbose=True) == 2
    assert capsys.readouterr().err.startswith("Traceback")
    with pytest.raises(OSError, match="of no file"):
        run_program(lambda: (_ for _ in ()).throw(OSError("of no file")))
