"""The figures of a chunk's report, on the small K3."""

import pytest

from kimi.assets import TINY_K3
from kimi.errors import InputError
from kimi.kernels.chip import TPU_V7
from kimi.lab.predict.compile import Compilation
from kimi.lab.predict.costs import JOINT
from kimi.lab.predict.module import Instruction
from kimi.lab.predict.module_time import Cost, Item
from kimi.lab.predict.prompt_report import (
    PromptReport,
    chunk_figures,
    flops,
    longest,
    prompt_fields,
    prompt_text,
)
from kimi.lab.predict.prompts import ChunkOptions, expert_inputs
from kimi.prefill.routing import TILE_ROWS

OPTIONS = ChunkOptions(tokens=128, context=384, topology="tpu7x:2x2x1", model=str(TINY_K3))


@pytest.fixture(scope="module")
def plans():
    return OPTIONS.plans()


def item(name, path, runs, us, link=0.0):
    text = f'  %{name} = f32[] fusion(), metadata={{op_name="{path}"}}'
    return Item(Instruction(name, "fusion", "f32[]", (), (), text), runs, Cost(us, 100, link))


ITEMS = [
    item("a", "jit(f)/while/body/attention/KDA/add", 3, 1000),
    item("b", "jit(f)/feed_forward/routed/MLP/dot", 2, 500),
    item("c", "jit(f)/mix/all_gather", 4, 250, link=1000),
    item("d", "", 1, 125),
]


def test_parts_add_up(plans):
    found = chunk_figures(*plans, OPTIONS.tokens, 128, ITEMS)
    assert found.parts == {
        "KDA, the rest": 3, "shared and dense MLP": 1, "exchanges": 1, "unnamed": 0.125
    }  # fmt: skip
    assert found.ms == sum(found.parts.values())
    assert found.cost.hbm_bytes == 1000 and found.cost.link_bytes == 4000
    assert longest(ITEMS)[0] == ("a", "KDA, the rest", 3)


def test_flops(plans):
    """Of all ranks: every matrix of a token once, its experts, and what it attends to."""
    plan, _ = plans
    c, ranks = plan.layout.config, plan.layout.mesh.ranks
    one, two, later = (ranks * flops(*plans, t, s) for t, s in ((128, 0), (256, 0), (128, 1000)))
    attended = c.num_attention_heads * (c.latent_cache_width + c.kv_lora_rank)
    assert later - one == 2 * 128 * 1000 * attended * len(c.mla_layers)
    assert two - 2 * one == pytest.approx(2 * 128 * 128 * attended * len(c.mla_layers))
    experts = c.num_experts_per_token * 3 * c.routed_expert_hidden_size * c.moe_intermediate_size
    assert one > 2 * 128 * experts * len(plan.layout.moe_layers)


def test_the_report(plans):
    """Both forms hold every figure; memory over the limit is said."""
    chunks = tuple(chunk_figures(*plans, 128, start, ITEMS) for start in (0, 128, 256))
    for temporaries, fits in ((10**9, True), (TPU_V7.hbm_bytes, False)):
        compilation = Compilation(1.0, 2.0, 3, 10**9, 5, temporaries, 5, {"dense": 10**9})
        report = PromptReport(
            OPTIONS,
            compilation,
            JOINT,
            384,
            chunks,
            chunks[-1],
            longest(ITEMS),
            {"x": ["y"]},
            {"joint": 15.4, "other": 20.0},
        )
        assert report.fits == fits and report.hbm_bytes == 10**9 + temporaries
        data, text = prompt_fields(report), prompt_text(report)
        assert data["predicted_prompt_ms"] == pytest.approx(3 * chunks[0].ms)
        assert [chunk["start"] for chunk in data["chunks"]] == [0, 128, 256]
        assert ("DOES NOT FIT" in text) != fits
        assert "384 tokens: predicted 15.4 ms (15 to 20 " in text and "note: x: y" in text


def test_scalars_of_the_experts(plans):
    """Every pair of the rank's group is in one tile, and no tile is without."""
    plan, _ = plans
    words = expert_inputs(plan, 128).operands
    [tiles], tokens, rows = words[0], words[1], words[5]
    assert len(tokens) == 128 * plan.layout.config.num_experts_per_token
    assert all(0 < n <= TILE_ROWS for n in rows[:tiles]) and not any(rows[tiles:])
    assert sum(rows) >= len(tokens) / plan.layout.mesh.expert_parallel


def test_other_sizes_are_refused():
    with pytest.raises(InputError, match=r"chunk: expected one of 128 tokens .* found 64"):
        ChunkOptions(tokens=64, context=100, topology="tpu7x:2x2x1", model=str(TINY_K3)).plans()
