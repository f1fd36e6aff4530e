"""The decode kernel compiles for TPU v7 at the published size."""

import pytest

from kimi.aot.launch import Built, Target, compile_targets
from tests.aot.conftest import ROOT

ROWS = {"one row": {"rows": 1}, "a block of eight": {"rows": 8}}


@pytest.mark.slow
@pytest.mark.parametrize("options", ROWS.values(), ids=ROWS)
def test_it_compiles_and_fits(options):
    (built,) = compile_targets([Target("tests.aot.decode:decode", options)], path=[str(ROOT)])
    assert isinstance(built, Built), built
    (name,) = built.compilation.hlo_kernels
    assert name.startswith("decode")
    assert built.compilation.argument_bytes < 50e9
