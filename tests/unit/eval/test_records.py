"""The file of answers: going on after anything."""

import json

import pytest

from kimi.errors import InputError
from scoring.records import AnswerFile, read

SETTINGS = {"task": "t", "seed": 0}


def answer(job: int) -> dict[str, object]:
    return {"job": job, "output": "é\u2028\n"}


def write(path, jobs, settings=SETTINGS, commit="c") -> AnswerFile:
    with AnswerFile(path, settings, {"commit": commit}) as file:
        for job in jobs:
            file.add([answer(job)])
    return file


def test_a_second_run_goes_on(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, [0, 1], commit="one")
    with AnswerFile(path, SETTINGS, {"commit": "two"}) as file:
        assert file.answers == {0: answer(0), 1: answer(1)}
        file.add([answer(2), answer(3)])
    runs, answers = read(path)
    assert [run["commit"] for run in runs] == ["one", "two"] == [r["commit"] for r in file.runs]
    assert [a["job"] for a in answers] == [0, 1, 2, 3]


def test_a_run_that_adds_nothing_leaves_no_trace(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, [0])
    before = path.read_bytes()
    assert write(path, [], commit="two").runs == [{"commit": "c"}]
    assert path.read_bytes() == before


@pytest.mark.parametrize("kept", range(1, 30, 7))
def test_a_line_cut_off_by_a_crash_is_done_again(tmp_path, kept):
    path = tmp_path / "a.jsonl"
    write(path, [0, 1])
    whole = path.read_bytes()
    last = whole.rfind(b"\n", 0, -1) + 1
    path.write_bytes(whole[: last + kept])
    assert write(path, [1]).answers == {0: answer(0), 1: answer(1)}
    assert [a["job"] for a in read(path)[1]] == [0, 1]


def test_a_file_cut_at_any_byte_goes_on(tmp_path):
    """Nothing that is whole is done again, nothing is there twice, and no run without an answer."""
    path, jobs = tmp_path / "a.jsonl", [0, 1, 2]
    write(path, [0, 1], commit="one")
    write(path, [2], commit="two")
    whole = path.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        there = [json.loads(whole[: end + 1].splitlines()[-1]) for end in ends if end <= cut]
        with AnswerFile(path, SETTINGS, {"commit": "new"}) as file:
            assert sorted(file.answers) == [line["job"] for line in there if "job" in line], cut
            for job in sorted(set(jobs) - set(file.answers)):
                file.add([answer(job)])
        runs, answers = read(path)
        assert answers == [answer(job) for job in jobs], cut
        heads = [
            json.loads(line)["run"] for line in path.read_text().split("\n") if '"run"' in line
        ]
        assert runs == heads, cut
        assert [run["commit"] for run in runs][:1] == (["one"] if len(there) > 1 else ["new"])


def test_a_full_disk_leaves_whole_answers(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    write(path, [0])
    before = path.read_bytes()
    with AnswerFile(path, SETTINGS, {}) as file:
        opened = file._file

        class Full:
            """Takes seven bytes, and then no more."""

            taken = 0

            def __getattr__(self, name):
                return getattr(opened, name)

            def write(self, data):
                if self.taken:
                    raise OSError(28, "No space left on device")
                self.taken = 7
                return opened.write(data[:7])

        file._file = Full()
        with pytest.raises(InputError, match="a.jsonl: cannot be written: No space left on device"):
            file.add([answer(1)])
        assert path.read_bytes() == before and sorted(file.answers) == [0]
        file._file = opened
        file.add([answer(1)])
    assert [a["job"] for a in read(path)[1]] == [0, 1]


def test_half_a_surrogate_pair_is_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    with AnswerFile(path, SETTINGS, {}) as file:
        file.add([{"job": 0, "output": "a\ud83d"}])
    assert read(path)[1] == [{"job": 0, "output": "a\ud83d"}]
    path.read_text(encoding="utf-8")


def test_a_first_line_cut_off_is_an_empty_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"run": {')
    assert write(path, [0]).answers == {0: answer(0)}
    assert json.loads(path.read_text().split("\n")[0])["run"]["settings"] == SETTINGS


def test_other_settings_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, [0])
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"a.jsonl: seed: .* made with 0, this run has 1: give"):
        write(path, [], SETTINGS | {"seed": 1})
    with pytest.raises(InputError, match=r"new: its answers were made with None"):
        write(path, [], SETTINGS | {"new": 1})
    assert path.read_bytes() == before


def test_two_runs_at_once_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    with AnswerFile(path, SETTINGS, {}):
        with pytest.raises(InputError, match=r"a.jsonl: another run is writing it"):
            write(path, [])
    write(path, [0])  # the first one is over


@pytest.mark.parametrize(
    "text, message",
    [
        ("hello\n", "line 1: expected an answer, found 'hello'"),
        ('{"job": "0"}\n', "line 1: expected an answer"),
        ("3\n", "line 1: expected an answer"),
        ('{"job": 0}\n', "line 1: expected the settings of a run, found none"),
        ('{"run": {}}\n', "settings: expected an object, found None"),
        ('"a run"\n', "line 1: expected an answer"),
        ('{"run": 5}\n', "line 1: expected an answer"),
        ('{"job": true}\n', "line 1: expected an answer"),
        ('{"job": -1}\n', "line 1: expected an answer"),
        ('{"job": 0, "x": NaN}\n', "line 1: expected an answer"),
        ("[" * 9999 + "]" * 9999 + "\n", "line 1: expected an answer"),
        ('{"job": %s}\n' % ("9" * 5000), "line 1: expected an answer"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path, text, message):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        write(path, [])
    assert path.read_text() == text


def test_a_path_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        write(tmp_path, [])
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written: "):
        write(tmp_path / "file" / "a.jsonl", [])
