"""The adapter for lm-evaluation-harness, with a task of our own; needs the extra `harness`."""

import json

import numpy as np
import pytest

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
        for convention, filtered in (("strict", strict), ("flexible", flexible)):
            (found,) = list(filtered.apply([[text]], [{}]))[0]
            expected = None if found == "[invalid]" else comparable(found)
            assert number(text)[convention] == expected, (text, convention)


def test_requests_that_cannot_be_served(model):
    from kimi.errors import InputError

    with pytest.raises(InputError, match="num_beams: expected one of"):
        model.generate_until([Request("x", {"num_beams": 2})])
    with pytest.raises(InputError, match="expected a task that generates"):
        model.loglikelihood([Request("a", "b")])


def test_the_script(monkeypatch, capsys, tmp_path):
    import sys

    import lm_harness

    monkeypatch.setattr(sys, "argv", ["x", "--tasks", "t", "--thinking", "max"])
    assert lm_harness.main() == 2
    assert "--thinking: expected --chat beside it" in capsys.readouterr().err
    monkeypatch.setattr(lm_harness, "evaluate", lambda args: {"t": {"x": 1}})
    monkeypatch.setattr(sys, "argv", ["x", "--tasks", "t", "--json", str(tmp_path / "r.json")])
    assert lm_harness.main() == 0
    assert json.loads((tmp_path / "r.json").read_text()) == {"t": {"x": 1}}
