"""The phases of the megakernel: their order, and what each waits for, reads, writes and starts.

The order stands here and nowhere else: `megakernel` runs these tuples, and the checker proves the
same ones. A test traces the kernel and compares every phase with its step. Read the steps as one
token's path; `DESIGN.md` tells the same in prose. An exchange is started in one phase and waited
for in a later one: what stands between covers it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import LayerKind, Layout
from kimi.kernels.schedule import (
    Counts,
    Kind,
    Message,
    Step,
    Transfer,
    in_order,
    limited,
    with_tiles,
)
from kimi.kernels.settings import Settings
from kimi.kernels.stream import Stream

PROLOGUE = ("begin", "embed", "embedded")
MIX = ("tap", "attention_mix")
KDA = ("kda_gates", "kda_in", "kda_decay", "kda_delta", "kda_out")
MLA = ("mla_down", "mla_gate", "mla_query", "mla_attend", "mla_out")
JOIN = ("mlp_bank", "attention_sum", "attention_join", "mlp_mix")
MOE = (
    "route", "shared_in", "choose", "experts", "shared_out", "latent_sum", "shared_sum",
    "latent_up",
)  # fmt: skip
DENSE = ("dense_in", "dense_out", "dense_sum")
END = ("attention_bank", "layer_join")
EPILOGUE = ("output_tap", "output_mix", "head", "token")
PHASES = (*PROLOGUE, *MIX, *KDA, *MLA, *JOIN, *MOE, *DENSE, *END, *EPILOGUE)


def attention(kind: LayerKind) -> tuple[str, ...]:
    """The phases of a layer between `MIX` and `JOIN`."""
    return MLA if kind.mla else KDA


def feed_forward(kind: LayerKind) -> tuple[str, ...]:
    """The phases of a layer between `JOIN` and `END`."""
    return MOE if kind.moe else DENSE


def epilogue(taps: Sequence[int], layers: int) -> tuple[str, ...]:
    """The phases behind the last layer; the drafter may read the stream there, see `Settings`."""
    return EPILOGUE if layers in taps else EPILOGUE[1:]


def matrices_of(phase: str, stream: Stream) -> tuple[str, ...]:
    """The matrices that a phase multiplies by: those of its name, and absorbed MLA ones."""
    prefixes = {"mla_query": ("mla_query", "mla_key_"), "mla_out": ("mla_value_", "mla_out")}
    names = prefixes.get(phase, (phase,))
    return tuple(m.name for m in stream.matrices if m.name.startswith(names))


def transfers(layout: Layout, sizes: Settings) -> tuple[Transfer, ...]:
    """All transfers. Sizes of messages follow from the layout."""
    c, mesh = layout.config, layout.mesh

    def rounded(values: int) -> Message:
        """To bfloat16, if it goes anywhere."""
        return Message(halves=values) if mesh.ranks > 1 else Message(words=values)

    columns, latent = mesh.local(c.hidden_size), mesh.local(c.routed_expert_hidden_size)
    loads = [
        Transfer("tiles", Kind.LOAD, target="ring", slots=sizes.ring_tiles),
        Transfer("vectors", Kind.LOAD, target="vectors"),
        Transfer("embedding", Kind.LOAD, target="embedding_rows", copies=sizes.rows),
        Transfer("kda_load", Kind.LOAD, target="kda_record"),
        Transfer("kda_store", Kind.STORE, source="kda_new_record"),
        Transfer("cache_load", Kind.LOAD, target="cache_tiles", slots=sizes.cache_slots),
        Transfer("open_load", Kind.LOAD, target="cache_open", copies=sizes.sequences),
        Transfer("open_store", Kind.STORE, source="cache_new_open"),
        Transfer("expert_load", Kind.LOAD, target="experts", slots=sizes.expert_slots),
    ]
    query = mesh.local(c.q_lora_rank) + mesh.local(c.latent_cache_width)
    experts = mesh.local(c.num_experts)
    route = replace(rounded(latent), words=rounded(latent).words + experts)
    exchanges = {
        "embed_gather": (Kind.GATHER, rounded(columns)),
        "decay_gather": (Kind.GATHER, Message(words=mesh.local(c.kda.head_dim))),
        "query_gather": (Kind.GATHER, Message(words=query)),
        "attention_scatter": (Kind.SCATTER, rounded(columns)),
        "attention_gather": (Kind.GATHER, rounded(columns)),
        "route_gather": (Kind.GATHER, route),
        "latent_scatter": (Kind.SCATTER, Message(words=latent)),
        "mlp_scatter": (Kind.SCATTER, rounded(columns)),
        "latent_gather": (Kind.GATHER, Message(words=latent)),
        "layer_gather": (Kind.GATHER, rounded(columns)),
        "token_gather": (Kind.GATHER, Message(words=2)),  # best logit and its id
    }
    return (*loads, *(
        Transfer(name, kind, f"{name}_send", f"{name}_receive", message=message)
        for name, (kind, message) in exchanges.items()
    ))  # fmt: skip


def _one(*names: str) -> Counts:
    return tuple((name, 1) for name in names)


def _message(name: str) -> tuple[str, str]:
    """What a phase fills before it starts an exchange: the own part goes where it will be read."""
    return f"{name}_send", f"{name}_receive"


def _got(name: str) -> str:
    return f"{name}_receive"


def layer_steps(layout: Layout, kind: LayerKind, sizes: Settings) -> tuple[Step, ...]:
    """The schedule of a layer.

    Counts of experts are nominal, as if the first ones were all: every slot that is given up takes
    the next expert, and those started are waited for.

    A layer starts the loads of the next layer of its kind, if there is one: see `program`.
    """
    store = "open_store" if kind.mla else "kda_store"
    steps = [
        Step("tap", (), ("stream",)),
        Step("attention_mix", (), ("stream", "bank_mix", "vectors"), ("normed",), _one("vectors")),
        *(_mla(sizes) if kind.mla else _kda()),
        # The raw stream joins the bank here, at the start of a block of layers.
        Step("mlp_bank", (), ("stream", "bank", "bank_norms", "vectors"),
             ("bank", "bank_norms", "bank_mix")),
        _exchange("attention_sum", "attention_scatter", "attention_gather"),
        Step("attention_join", _one("attention_gather"), (_got("attention_gather"), "stream"),
             ("stream",)),
        Step("mlp_mix", (), ("stream", "bank_mix", "vectors"), ("normed",)),
        *(_moe(layout.expert_format, sizes) if kind.moe else _dense()),
        # Mixes with the weights of the next layer, which must therefore be here.
        Step("attention_bank", _one("vectors"), ("bank", "bank_norms", "vectors"), ("bank_mix",)),
        Step("layer_join", _one("layer_gather", store), (_got("layer_gather"), "stream"),
             ("stream",)),
    ]  # fmt: skip
    order = (*MIX, *attention(kind), *JOIN, *feed_forward(kind), *END)
    return tuple(with_tiles(in_order(steps, order), layout.streams[kind], matrices_of))


def _exchange(phase: str, sum_of: str, then: str) -> Step:
    """Sums what a reduce-scatter brought and sends the sum to all."""
    return Step(phase, _one(sum_of), (_got(sum_of),), _message(then), _one(then))


def _kda() -> Iterator[Step]:
    yield Step("kda_gates", (), ("normed",), ("gates", *_message("decay_gather")),
               _one("decay_gather"))  # fmt: skip
    yield Step("kda_in", (), ("normed",), ("projected",))
    yield Step("kda_decay", _one("decay_gather"), (_got("decay_gather"),), ("decay",))
    yield Step("kda_delta", _one("kda_load"),
               ("kda_record", "projected", "gates", "decay", "vectors"),
               ("kda_new_record", "attended"), _one("kda_load", "kda_store"))  # fmt: skip
    yield Step("kda_out", (), ("attended",), ("partial", *_message("attention_scatter")),
               _one("attention_scatter"))  # fmt: skip


def _mla(sizes: Settings) -> Iterator[Step]:
    yield Step("mla_down", (), ("normed",), _message("query_gather"), _one("query_gather"))
    yield Step("mla_gate", (), ("normed",), ("mla_gates",))
    yield Step("mla_query", _one("query_gather", "open_load"),
               (_got("query_gather"), "vectors", "cache_open"),
               ("query", "keys", "cache_new_open"),
               _one("open_load", "open_store"))  # fmt: skip
    yield Step("mla_attend", (("cache_load", sizes.cache_slots),),
               ("keys", "cache_new_open", "cache_tiles"),
               ("cache_tiles", "mixed"),  # dead positions are cleared where they lie
               (("cache_load", sizes.cache_slots),))  # fmt: skip
    yield Step("mla_out", (), ("mixed", "mla_gates"),
               ("attended", "partial", *_message("attention_scatter")),
               _one("attention_scatter"))  # fmt: skip


def _moe(experts: ExpertFormat, sizes: Settings) -> Iterator[Step]:
    # A product of FP8 is weighted for all rows at once, from VMEM.
    weights = ("choice",) if experts is ExpertFormat.FP8 else ()
    yield Step("route", (), ("normed",), _message("route_gather"), _one("route_gather"))
    yield Step("shared_in", (), ("normed",), ("gate_up", "hidden"))
    yield Step("choose", _one("route_gather"), (_got("route_gather"), "vectors"),
               ("choice", "expert_list", "spread"),
               (("expert_load", sizes.expert_slots),))  # fmt: skip
    yield Step("experts", (("expert_load", sizes.expert_slots),),
               ("experts", "expert_list", "spread", *weights),
               ("expert_hidden", "expert_sum", *_message("latent_scatter")),
               (("expert_load", 0), *_one("latent_scatter")))  # fmt: skip
    yield Step("shared_out", (), ("hidden",), ("partial", *_message("mlp_scatter")),
               _one("mlp_scatter"))  # fmt: skip
    yield _exchange("latent_sum", "latent_scatter", "latent_gather")
    yield Step("shared_sum", _one("mlp_scatter"), (_got("mlp_scatter"),), ("shared",))
    yield Step("latent_up", _one("latent_gather"),
               (_got("latent_gather"), "vectors", "shared"), _message("layer_gather"),
               _one("layer_gather"))  # fmt: skip


def _dense() -> Iterator[Step]:
    yield Step("dense_in", (), ("normed",), ("gate_up", "hidden"))
    yield Step("dense_out", (), ("hidden",), ("partial", *_message("mlp_scatter")),
               _one("mlp_scatter"))  # fmt: skip
    yield _exchange("dense_sum", "mlp_scatter", "layer_gather")


def frame_steps(layout: Layout, sizes: Settings) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """What precedes the first layer, and what follows the last."""
    c = layout.config
    ahead: Counts = (
        *(_one("kda_load") if c.kda_layers else ()),
        *((*_one("open_load"), ("cache_load", sizes.cache_slots)) if c.mla_layers else ()),
    )
    prologue = (
        Step("begin", starts=(*_one("embedding", "vectors"), ("tiles", sizes.ring_tiles), *ahead)),
        Step("embed", _one("embedding"), ("embedding_rows",), _message("embed_gather"),
             _one("embed_gather")),
        Step("embedded", _one("embed_gather", "vectors"), (_got("embed_gather"), "vectors"),
             ("stream", "bank", "bank_norms", "bank_mix")),
    )  # fmt: skip
    steps = (
        Step("output_tap", (), ("stream",)),
        Step("output_mix", (), ("stream", "bank_mix", "vectors"), ("normed",)),
        Step("head", (), ("normed",), _message("token_gather"), _one("token_gather")),
        Step("token", _one("token_gather"), (_got("token_gather"),)),
    )  # fmt: skip
    behind = in_order(steps, epilogue(sizes.taps, c.num_hidden_layers))
    return prologue, tuple(with_tiles(behind, layout.head_stream, matrices_of))


def program(layout: Layout, sizes: Settings) -> tuple[Step, ...]:
    """The whole program, all layers written out. Nothing is loaded that does not exist."""
    prologue, behind = frame_steps(layout, sizes)
    kinds = {kind: layer_steps(layout, kind, sizes) for kind in layout.layer_of_kind}
    layers = range(layout.config.num_hidden_layers)
    written = [*prologue, *(s for i in layers for s in kinds[layout.kind(i)]), *behind]
    c = layout.config
    left = {
        "tiles": layout.tiles,
        "kda_load": len(c.kda_layers),
        "open_load": len(c.mla_layers),
        "cache_load": len(c.mla_layers) * sizes.cache_slots,
    }
    return limited(written, left)
