"""What the compiler says when a program does not fit, and how it is shown."""

import pytest

from kimi.errors import InputError
from kimi.lab.predict.launch import Refused
from kimi.lab.predict.report import refusal_text


@pytest.mark.parametrize(
    "name,kind,space,figure",
    [
        ("vmem", "CompileTimeVmemOom", "vmem", "83886080 bytes"),
        ("scoped", "CompileTimeScopedVmemOom", "vmem", "40.00MiB"),
        ("smem", "CompileTimeSmemOom", "smem", "1048576"),
        ("sflag", "CompileTimeSflagOom", "sflag", "16384"),
        ("hbm", "CompileTimeHbmOom", "hbm", "94.74GiB"),
        ("unlowerable", "CompileError", None, "sort"),
    ],
)
def test_refusal_is_one_line_with_the_figures(outcomes, name, kind, space, figure):
    found = outcomes[name]
    assert isinstance(found, Refused)
    assert (found.kind, found.space) == (kind, space)
    assert figure in str(found) and "\n" not in str(found)


def test_refusal_shows_the_buffer_table(outcomes):
    text = refusal_text(outcomes["smem"])
    assert "buffer table" in text and "80.00 MiB" in text and "big" in text


def test_bad_topology_is_named(outcomes):
    found = outcomes["wrong_topology"]
    assert isinstance(found, InputError) and "tpu6e:2x2" in str(found)
