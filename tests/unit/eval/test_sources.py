"""Questions from files and from the hub, and what is said if there are none."""

import json

import pytest

from kimi.errors import InputError
from scoring.sources import HubFile, read

COLUMNS = ("question", "answer")
ROWS = [{"question": "1 + 1?", "answer": "#### 2"}, {"question": "a\u2028b, c", "answer": "é"}]


def test_jsonl(tmp_path):
    file = tmp_path / "x.jsonl"
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    file.write_text(text + "\n\n", encoding="utf-8")
    assert list(read(str(file), COLUMNS).rows) == ROWS
    marked = tmp_path / "Y.JSONL"
    marked.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert list(read(str(marked), COLUMNS).rows) == ROWS


def test_csv_with_a_mark_quotes_and_more_columns(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text('id,question,answer\n7,"a, ""b""\nc",#### 1\n', encoding="utf-8-sig")
    assert read(str(file), COLUMNS).rows == ({"question": 'a, "b"\nc', "answer": "#### 1"},)


def test_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "x.parquet"
    parquet.write_table(arrow.Table.from_pylist(ROWS), file)
    assert list(read(str(file), COLUMNS).rows) == ROWS
    file.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"x.parquet: not valid Parquet: "):
        read(str(file), COLUMNS)


def test_the_same_file_has_the_same_hash(tmp_path):
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    one.write_text(json.dumps(ROWS[0]))
    two.write_text(json.dumps(ROWS[1]))
    assert read(str(one), COLUMNS).sha256 != read(str(two), COLUMNS).sha256


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("x.txt", "", "expected a file .jsonl, .csv, .parquet, found '.txt'"),
        ("x.jsonl", "", "expected at least one row, found none"),
        ("x.jsonl", '{"question": "q"', "line 1: not valid JSON"),
        ("x.jsonl", "[1]", r"line 1: expected an object, found \[1\]"),
        ("x.jsonl", '{"question": "q"}', "row 1: answer: expected a text, found no such column"),
        ("x.jsonl", '{"question": 3, "answer": "a"}', "row 1: question: expected a text, found 3"),
        ("x.csv", "question,answer\nq,a\nq,\n", "row 2: answer: expected a text, found ''"),
        ("x.csv", "question,answer\nq\n", "row 1: answer: expected a text, found None"),
        ("x.csv", b"question,answer\n\xff,a", "expected UTF-8, found 0xff"),
        ("x.csv", "question,answer\nq, r,a\n", "row 1: expected 2 columns, found more"),
        ("x.csv", 'question,answer\n"q,a\nq,a\n', "not valid CSV: unexpected end of data"),
        ("x.jsonl", b'\n{"question": "\xff"}', "line 2: expected UTF-8, found 0xff"),
        ("x.jsonl", "[" * 9999 + "]" * 9999, "line 1: not valid JSON: nested too deeply"),
        ("x.jsonl", '{"answer": %s}' % ("9" * 5000), "line 1: not valid JSON: Exceeds the limit"),
        ("x.jsonl", '{"answer": "a", "answer": "b"}', "line 1: 'answer' occurs twice"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=f"{name}: {message}"):
        read(str(file), COLUMNS)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r"x.csv: no such file$"):
        read(str(tmp_path / "x.csv"), COLUMNS)


@pytest.mark.parametrize("gate", [False, True])
def test_no_network_says_what_to_do(monkeypatch, gate):
    import huggingface_hub

    def offline(*unused, **options):
        raise OSError("We couldn't connect.\nmore")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(InputError) as caught:
        read(HubFile("a/b", "c.csv", gate), COLUMNS)
    text = str(caught.value)
    assert text.startswith("a/b: c.csv: cannot be had from the hub: We couldn't connect: ")
    assert "--data FILE" in text and "\n" not in text
    assert ("accept the conditions at https://huggingface.co/datasets/a/b" in text) is gate


def test_a_file_of_the_hub(monkeypatch, tmp_path):
    import huggingface_hub

    file = tmp_path / "c.jsonl"
    file.write_text(json.dumps(ROWS[0]))

    def download(repository, name, *, repo_type):
        assert (repository, name, repo_type) == ("a/b", "c.jsonl", "dataset")
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert read(HubFile("a/b", "c.jsonl"), COLUMNS).rows == (ROWS[0],)
