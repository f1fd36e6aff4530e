"""The phases of the draft kernel: its schedule. Read the steps as one block's path."""

from kimi.kernels.chip import LANES
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.schedule import (
    Kind,
    Message,
    Step,
    Transfer,
    collectives,
    limited,
    sum_step,
    with_tiles,
)
from kimi.kernels.schedule import phase_step as step

PROLOGUE = ("begin", "embed", "fuse", "embedded", "fused")
LAYER = (
    "attention_norm", "project", "attend", "attention_out", "attention_sum", "mlp_norm", "mlp_in",
    "mlp_out", "mlp_sum", "layer_join",
)  # fmt: skip
EPILOGUE = ("output_norm", "head", "choose", "results")
PHASES = (*PROLOGUE, *LAYER, *EPILOGUE)
# Two collectives take turns along the rows: between two uses of one lies the other.
TURNS = ("odd_gather", "even_gather")
DISTINCT_TOKENS = 2  # of a block: the anchor and the mask
STORES = 2  # blocks of a layer's context that new positions are written into


def transfers(layout: DraftLayout, ring_tiles: int) -> tuple[Transfer, ...]:
    """All transfers. Sizes of messages follow from the layout."""
    c, mesh = layout.config, layout.mesh
    columns, layers = mesh.local(c.hidden_size), c.num_hidden_layers

    def rounded(tokens: int = 0) -> Message:
        """The rank's columns, as bfloat16 if they go anywhere."""
        if mesh.ranks > 1:
            return Message(bf16=columns, tokens=tokens)
        return Message(words=columns, tokens=tokens)

    # A candidate: its logit and id on all lanes, and its row of w1.
    candidate = Message(words=2 * LANES + layout.markov_words, tokens=1)
    return (
        Transfer("tiles", Kind.LOAD, target="ring", slots=ring_tiles),
        Transfer("vectors", Kind.LOAD, target="vectors"),
        Transfer("embedding", Kind.LOAD, target="embedding_rows", copies=DISTINCT_TOKENS),
        Transfer("taps", Kind.LOAD, target="taps"),
        Transfer("markov_in", Kind.LOAD, target="markov_in"),
        Transfer("markov_out", Kind.LOAD, target="markov_out"),
        Transfer("cache_load", Kind.LOAD, target="cache", slots=layers),
        Transfer("cache_store", Kind.STORE, source="cache", slots=STORES * layers),
        *collectives({
            "embed_gather": rounded(DISTINCT_TOKENS),
            "fuse_gather": rounded(),
            "attention_scatter": rounded(),
            "attention_gather": rounded(),
            "mlp_scatter": rounded(),
            "mlp_gather": rounded(),
            **dict.fromkeys(TURNS, candidate),
        }),
    )  # fmt: skip


def prologue_steps(layout: DraftLayout, ring_tiles: int) -> tuple[Step, ...]:
    """What precedes the layers: the block's rows, and what the committed ones add."""
    loads = ("embedding", "taps", "vectors", "markov_in", "markov_out", ("tiles", ring_tiles))
    steps = (
        step("begin", starts=[*loads, ("cache_load", layout.config.num_hidden_layers)]),
        step("embed", ["embedding"], ["embedding_rows"], [], ["embed_gather"]),
        step("fuse", ["taps"], ["taps"], ["tap_rows"], ["fuse_gather"]),
        step("embedded", ["embed_gather"], [], ["stream", "angles"]),
        step("fused", ["fuse_gather", "vectors"], ["vectors"], ["committed_rows"]),
    )
    return tuple(with_tiles(steps, layout.fuse_stream))


def layer_steps(layout: DraftLayout) -> tuple[Step, ...]:
    """A layer."""
    steps = (
        step("attention_norm", [], ["stream", "committed_rows", "vectors"], ["normed"]),
        step("project", [], ["normed"], ["projected"]),
        step("attend", ["cache_load"], ["cache", "projected", "angles", "vectors"],
             ["cache", "attended"], [("cache_store", STORES)]),
        step("attention_out", [], ["attended"], ["partial"], ["attention_scatter"]),
        sum_step("attention_sum", "attention_scatter", "attention_gather"),
        step("mlp_norm", ["attention_gather"], ["stream", "vectors"], ["stream", "normed"]),
        step("mlp_in", [], ["normed"], ["gate_up", "hidden"]),
        step("mlp_out", [], ["hidden"], ["partial"], ["mlp_scatter"]),
        sum_step("mlp_sum", "mlp_scatter", "mlp_gather"),
        step("layer_join", ["mlp_gather"], ["stream"], ["stream"]),
    )  # fmt: skip
    return tuple(with_tiles(steps, layout.layer_stream))


def epilogue_steps(layout: DraftLayout) -> tuple[Step, ...]:
    """What follows the layers: the head, and the choice of a token row after row."""
    c = layout.config
    steps = [
        step("output_norm", [], ["stream", "vectors"], ["normed", "confidence"]),
        step("head", ["markov_in"], ["normed", "markov_in"], ["base"], [TURNS[0]]),
    ]
    reads = ["base", "confidence", "markov_in", "markov_out", "vectors"]
    for row in range(c.block_size):
        last, following = TURNS[row % 2], TURNS[(row + 1) % 2]
        loaded = ["markov_out"] if row == 0 else []
        steps.append(step("choose", [last, *loaded], reads, [], [following]))
    stores = ("cache_store", STORES * c.num_hidden_layers)
    steps.append(step("results", [TURNS[c.block_size % 2], stores]))
    return tuple(with_tiles(steps, layout.head_stream))


def program(layout: DraftLayout, ring_tiles: int) -> tuple[Step, ...]:
    """The whole program, all layers written out. No tile is loaded that does not exist."""
    layers = layer_steps(layout) * layout.config.num_hidden_layers
    return limited(
        (*prologue_steps(layout, ring_tiles), *layers, *epilogue_steps(layout)),
        {"tiles": layout.tiles},
    )
