"""The adapter for lm-evaluation-harness, with a task of our own; needs the extra `harness`."""

import json
import sys
import warnings

import numpy as np
import pytest

from kimi.errors import InputError

pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
# Its imports and its dataset library warn about themselves.
pytestmark = pytest.mark.filterwarnings("ignore")

TASK = """\
task: grade_school
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: [",", "\\\\$", "(?s).*#### ", "\\\\.$"]
generation_kwargs: {{until: ["Question:"], do_sample: false, max_gen_toks: 96}}
filter_list:
  - name: flexible-extract
    filter:
      - {{function: regex, group_select: -1, regex_pattern: "(-?[$0-9.,]{{2,}})|(-?[0-9]+)"}}
      - {{function: take_first}}
"""


@pytest.fixture(scope="module")
def model(tiny):
    import lm_harness
    from kimi.api import Engine

    return lm_harness.KimiModel(Engine(tiny, "reference"), chat=True, thinking="low")


class Request:
    """What is used of the harness' `Instance`."""

    def __init__(self, *args):
        self.args = args


def test_a_local_task(model, tmp_path, monkeypatch):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from kimi.assets import GRADE_SCHOOL

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "task.yaml").write_text(TASK.format(file=GRADE_SCHOOL))
    manager = TaskManager(include_path=tmp_path, include_defaults=False)
    found = simple_evaluate(model, tasks=["grade_school"], limit=3, task_manager=manager)
    assert found["results"]["grade_school"]["exact_match,flexible-extract"] == 1


def test_the_model_is_registered():
    from lm_eval.api.registry import get_model

    assert get_model("kimi-k3").__name__ == "KimiModel"


def test_texts_end_at_their_stop_strings(model, tiny):
    import lm_harness

    raw = lm_harness.KimiModel(model.engine)
    options = {"until": ["."], "max_gen_toks": 40}
    (cut,) = raw.generate_until([Request("It was a fine day and", options)])
    (whole,) = raw.generate_until([Request("It was a fine day and", {"max_gen_toks": 40})])
    assert whole.startswith(cut) and "." not in cut
    assert cut == whole.split(".")[0]


def test_log_likelihoods_are_those_of_the_model(model):
    import lm_harness

    raw = lm_harness.KimiModel(model.engine)
    text = "It was a fine day"
    ids = model.engine.encode(text, chat=False)
    logits = model.engine.logits([raw._first, *ids]).astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = logs[np.arange(len(ids)), ids]
    (rolling,) = raw.loglikelihood_rolling([Request(text)])
    assert rolling == pytest.approx(expected.sum(), abs=1e-3)
    (empty,) = raw.loglikelihood([Request("", text)])
    assert empty[0] == pytest.approx(rolling, abs=1e-3)
    ((greedy, is_greedy),) = raw.loglikelihood([Request(text + " ", "xyzzy")])
    assert not is_greedy and greedy < -5


def test_a_temperature_asks_for_sampling(model, monkeypatch):
    import lm_harness

    seen = []
    monkeypatch.setattr(
        model.engine, "generate", lambda ids, n, **given: seen.append((n, given)) or iter(())
    )
    raw = lm_harness.KimiModel(model.engine)
    cases = [
        ({"temperature": 0.8}, 0.8), ({"temperature": 0.8, "do_sample": True}, 0.8),
        ({"temperature": 0.8, "do_sample": False}, 0), ({"do_sample": True}, 1), ({}, 0),
        ({"temperature": None, "top_p": None, "until": None}, 0),
    ]  # fmt: skip
    for options, expected in cases:
        raw.generate_until([Request("x", {"max_new_tokens": 4, **options})])
        assert seen[-1][0] == 4 and seen[-1][1]["temperature"] == expected, options
    count = len(seen)
    assert raw.generate_until([Request("x", {"max_gen_toks": 0})]) == [""] and len(seen) == count


def test_long_texts_are_scored_in_windows(model, monkeypatch):
    """Windows of 8 ids: each id once, the last window as full as the others."""
    import lm_harness

    raw, seen = lm_harness.KimiModel(model.engine), []
    monkeypatch.setattr(lm_harness.KimiModel, "_context", 8)

    def logits(ids):
        seen.append(list(ids))
        return np.zeros((len(ids), model.engine.config.vocab_size), np.float32)

    monkeypatch.setattr(model.engine, "logits", logits)
    first, one = raw._first, -float(np.log(model.engine.config.vocab_size))
    assert raw._roll([]) == 0 and not seen
    assert raw._roll(list(range(10, 20))) == pytest.approx(10 * one)
    assert seen == [[first, *range(10, 17)], list(range(11, 19))]
    seen.clear()
    assert raw._roll(list(range(10, 18))) == pytest.approx(8 * one) and len(seen) == 1
    with pytest.warns(UserWarning, match="context: expected at most 6 tokens .*, found 9: the beg"):
        assert raw._score(list(range(9)), list(range(12)))[0] == pytest.approx(3 * one)
    assert seen[-1] == list(range(3, 11))
    with warnings.catch_warnings(action="error"):
        raw._score(list(range(9)), list(range(12)))  # said once
    with pytest.raises(InputError, match="continuation: expected at most 8 tokens, found 9"):
        raw._score([1], list(range(10)))
    assert raw._score([1, 2], [1, 2]) == (0.0, True)


@pytest.mark.parametrize("chat", [False, True])
def test_too_long_a_context_loses_its_beginning(model, monkeypatch, chat):
    import lm_harness

    raw, seen = lm_harness.KimiModel(model.engine, chat=chat), []

    class Generation(list):
        ids = ()

    def generate(ids, n, **options):
        if len(ids) + n > 60:
            raise InputError("too long")
        seen.append(ids)
        return Generation()

    monkeypatch.setattr(lm_harness.KimiModel, "_context", 60)
    monkeypatch.setattr(model.engine, "generate", generate)
    long = "First. " * 99 + "And the last words."
    with pytest.warns(UserWarning, match="context: expected at most 50 tokens"):
        raw.generate_until([Request(long, {"max_gen_toks": 10})])
    (ids,) = seen
    assert 40 <= len(ids) <= 50
    assert "And the last words." in model.engine.tokenizer.decode(ids)
    if chat:
        assert ids[:3] == raw._encode("x")[:3], "still a message of the chat"
    with pytest.raises(InputError, match="too long"):
        raw.generate_until([Request("short", {"max_gen_toks": 60})])


def test_tasks_that_cannot_be_had(monkeypatch, capsys, tmp_path):
    import lm_eval.tasks

    import lm_harness

    class Manager:
        def __init__(self, include_path):
            self.task_index = {"known": None}

        def load(self, names):
            raise ConnectionError("Couldn't reach 'x' on the Hub\nmore")

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", Manager)
    for names, message in (
        (["known", "nosuch"], "--tasks: expected names of the harness"),
        (["known"], "--tasks: known: cannot be loaded: Couldn't reach 'x' on the Hub"),
        (["known", "--include", str(tmp_path / "no")], "no: expected a folder, found none"),
    ):
        monkeypatch.setattr(sys, "argv", ["x", "--tasks", *names])
        assert lm_harness.main() == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1 and error.startswith("error: ")


def test_extraction_is_the_harness_own():
    """Our two GSM8K conventions against its filters, character by character."""
    from lm_eval.filters.extraction import RegexFilter

    from scoring.extraction import comparable, number

    strict = RegexFilter(r"#### (\-?[0-9\.\,]+)")
    flexible = RegexFilter(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)
    texts = [
        "#### 42", "#### 1,234.", "x #### -5 #### 6", "####7", "The answer is $1,080.", "...", "",
        "5 apples...", "3.50 and 4,", "-12", "**36**", "$.", "#### .", "half", "1 2\n3", "½ ٣",
    ]  # fmt: skip
    for text in texts:
        for convention, filtered in (("strict", strict), ("harness_flexible", flexible)):
            (found,) = list(filtered.apply([[text]], [{}]))[0]
            expected = None if found == "[invalid]" else comparable(found)
            assert number(text)[convention] == expected, (text, convention)


def test_requests_that_cannot_be_served(model):
    with pytest.raises(InputError, match="num_beams: expected one of"):
        model.generate_until([Request("x", {"num_beams": 2})])
    for options, message in (
        ({"until": [3]}, "until: expected a text or a list of texts, found"),
        ({"max_gen_toks": -1}, "max_gen_toks: expected at least 0, found -1"),
        ({"max_gen_toks": 2.5}, "max_gen_toks: expected an integer, found 2.5"),
        ({"do_sample": "no"}, "do_sample: expected True or False, found 'no'"),
        ({"temperature": "hot"}, "temperature: expected a number, found 'hot'"),
    ):
        with pytest.raises(InputError, match=message):
            model.generate_until([Request("x", options)])
    with pytest.raises(InputError, match="expected a task that generates"):
        model.loglikelihood([Request("a", "b")])


def test_the_script(monkeypatch, capsys, tmp_path):
    import lm_harness

    monkeypatch.setattr(sys, "argv", ["x", "--tasks", "t", "--thinking", "max"])
    assert lm_harness.main() == 2
    assert "--thinking: expected --chat beside it" in capsys.readouterr().err
    monkeypatch.setattr(lm_harness, "evaluate", lambda args: {"t": {"x": 1}})
    monkeypatch.setattr(sys, "argv", ["x", "--tasks", "t", "--json", str(tmp_path / "r.json")])
    assert lm_harness.main() == 0
    assert json.loads((tmp_path / "r.json").read_text()) == {"t": {"x": 1}}
