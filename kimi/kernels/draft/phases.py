"""The phases of the draft kernel: its schedule. Read the steps as one block's path."""

from collections.abc import Iterator

from kimi.kernels.chip import LANES
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.schedule import Counts, Kind, Message, Step, Transfer, limited, with_tiles
from kimi.kernels.stream import Stream

PROLOGUE = ("begin", "embed", "fuse", "embedded", "fused")
LAYER = (
    "attention_norm", "project", "attend", "attention_out", "attention_sum", "mlp_norm", "mlp_in",
    "mlp_out", "mlp_sum", "layer_join",
)  # fmt: skip
EPILOGUE = ("output_norm", "head", "choose", "results")
PHASES = (*PROLOGUE, *LAYER, *EPILOGUE)
# Two exchanges take turns along the rows: between two uses of one lies the other.
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
            return Message(halves=columns, tokens=tokens)
        return Message(words=columns, tokens=tokens)

    # A candidate: its logit and id on all lanes, and its row of w1.
    candidate = Message(words=2 * LANES + layout.markov_words, tokens=1)
    exchanges = {
        "embed_gather": (Kind.GATHER, rounded(2)),  # the anchor and the mask
        "fuse_gather": (Kind.GATHER, rounded()),
        "attention_scatter": (Kind.SCATTER, rounded()),
        "attention_gather": (Kind.GATHER, rounded()),
        "mlp_scatter": (Kind.SCATTER, rounded()),
        "mlp_gather": (Kind.GATHER, rounded()),
        **dict.fromkeys(TURNS, (Kind.GATHER, candidate)),
    }
    return (
        Transfer("tiles", Kind.LOAD, target="ring", slots=ring_tiles),
        Transfer("vectors", Kind.LOAD, target="vectors"),
        Transfer("embedding", Kind.LOAD, target="embedding_rows", copies=DISTINCT_TOKENS),
        Transfer("taps", Kind.LOAD, target="taps"),
        Transfer("markov_in", Kind.LOAD, target="markov_in"),
        Transfer("markov_out", Kind.LOAD, target="markov_out"),
        Transfer("context_load", Kind.LOAD, target="context", slots=layers),
        Transfer("context_store", Kind.STORE, source="context", slots=STORES * layers),
        *(
            Transfer(name, kind, f"{name}_send", f"{name}_receive", message=message)
            for name, (kind, message) in exchanges.items()
        ),
    )


def _one(*names: str) -> Counts:
    return tuple((name, 1) for name in names)


def _message(name: str) -> tuple[str, str]:
    """What a phase fills before it starts an exchange: the own part goes where it will be read."""
    return f"{name}_send", f"{name}_receive"


def _got(name: str) -> str:
    return f"{name}_receive"


def _matrices(phase: str, stream: Stream) -> tuple[str, ...]:
    """A phase multiplies by the matrix of its name, if there is one."""
    return tuple(m.name for m in stream.matrices if m.name == phase)


def prologue_steps(layout: DraftLayout, ring_tiles: int) -> tuple[Step, ...]:
    """What precedes the layers: the block's rows, and what the committed ones add."""
    loads = _one("embedding", "taps", "vectors", "markov_in", "markov_out")
    layers = layout.config.num_hidden_layers
    steps = (
        Step("begin", starts=(*loads, ("tiles", ring_tiles), ("context_load", layers))),
        Step("embed", _one("embedding"), ("embedding_rows",), _message("embed_gather"),
             _one("embed_gather")),
        Step("fuse", _one("taps"), ("taps",), ("tap_rows", *_message("fuse_gather")),
             _one("fuse_gather")),
        Step("embedded", _one("embed_gather"), (_got("embed_gather"),), ("stream", "angles")),
        Step("fused", _one("fuse_gather", "vectors"), (_got("fuse_gather"), "vectors"),
             ("context_rows",)),
    )  # fmt: skip
    return tuple(with_tiles(steps, layout.fuse_stream, _matrices))


def layer_steps(layout: DraftLayout) -> tuple[Step, ...]:
    """A layer."""
    steps = (
        Step("attention_norm", (), ("stream", "context_rows", "vectors"), ("normed",)),
        Step("project", (), ("normed",), ("projected",)),
        Step("attend", _one("context_load"), ("context", "projected", "angles", "vectors"),
             ("context", "attended"), (("context_store", STORES),)),
        Step("attention_out", (), ("attended",), ("partial", *_message("attention_scatter")),
             _one("attention_scatter")),
        _sum("attention_sum", "attention_scatter", "attention_gather"),
        Step("mlp_norm", _one("attention_gather"), (_got("attention_gather"), "stream", "vectors"),
             ("stream", "normed")),
        Step("mlp_in", (), ("normed",), ("gate_up", "hidden")),
        Step("mlp_out", (), ("hidden",), ("partial", *_message("mlp_scatter")),
             _one("mlp_scatter")),
        _sum("mlp_sum", "mlp_scatter", "mlp_gather"),
        Step("layer_join", _one("mlp_gather"), (_got("mlp_gather"), "stream"), ("stream",)),
    )  # fmt: skip
    return tuple(with_tiles(steps, layout.layer_stream, _matrices))


def _sum(phase: str, sum_of: str, then: str) -> Step:
    return Step(phase, _one(sum_of), (_got(sum_of),), _message(then), _one(then))


def epilogue_steps(layout: DraftLayout) -> tuple[Step, ...]:
    """What follows the layers: the head, and the choice of a token row after row."""
    return tuple(with_tiles(tuple(_epilogue(layout)), layout.head_stream, _matrices))


def _epilogue(layout: DraftLayout) -> Iterator[Step]:
    c = layout.config
    yield Step("output_norm", (), ("stream", "vectors"), ("normed", "confidence"))
    yield Step("head", _one("markov_in"), ("normed", "markov_in"), ("base", *_message(TURNS[0])),
               _one(TURNS[0]))  # fmt: skip
    for row in range(c.block_size):
        last, following = TURNS[row % 2], TURNS[(row + 1) % 2]
        loaded = _one("markov_out") if row == 0 else ()
        yield Step("choose", (*_one(last), *loaded),
                   (_got(last), "base", "confidence", "markov_in", "markov_out", "vectors"),
                   (*_message(following),), _one(following))  # fmt: skip
    last = TURNS[c.block_size % 2]
    stores = ("context_store", STORES * c.num_hidden_layers)
    yield Step("results", (*_one(last), stores), (_got(last),))


def program(layout: DraftLayout, ring_tiles: int) -> tuple[Step, ...]:
    """The whole program, all layers written out. No tile is loaded that does not exist."""
    layers = layer_steps(layout) * layout.config.num_hidden_layers
    return limited(
        (*prologue_steps(layout, ring_tiles), *layers, *epilogue_steps(layout)),
        {"tiles": layout.tiles},
    )
