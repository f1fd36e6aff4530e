"""The phases of the megakernel: their order, and what each waits for, reads, writes and starts.

The order stands here and nowhere else: `megakernel` runs these tuples, and the checker proves the
same ones. A test traces the kernel and compares every phase with its step. Read the steps as one
token's path; `DESIGN.md` tells the same in prose. A collective is started in one phase and waited
for in a later one: what stands between covers it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import LayerKind, Layout
from kimi.kernels.schedule import (
    Copies,
    Kind,
    Message,
    Step,
    Transfer,
    collectives,
    in_order,
    limited,
    sum_step,
    with_tiles,
)
from kimi.kernels.schedule import phase_step as step
from kimi.kernels.settings import Settings

PROLOGUE = ("begin", "embed", "embedded")
MIX = ("tap", "attention_res")
KDA = ("kda_gates", "kda_in", "kda_decay", "kda_delta", "kda_out")
MLA = ("mla_down", "mla_gate", "mla_query", "mla_attend", "mla_out")
JOIN = ("mlp_residuals", "attention_sum", "attention_join", "mlp_res")
MOE = (
    "route", "shared_in", "choose", "experts", "shared_out", "latent_sum", "shared_sum",
    "latent_up",
)  # fmt: skip
DENSE = ("dense_in", "dense_out", "dense_sum")
END = ("attention_residuals", "layer_join")
EPILOGUE = ("output_tap", "output_res", "head", "token")
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


def transfers(layout: Layout, sizes: Settings) -> tuple[Transfer, ...]:
    """All transfers. Sizes of messages follow from the layout."""
    c, mesh = layout.config, layout.mesh

    def rounded(values: int) -> Message:
        """To bfloat16, if it goes anywhere."""
        return Message(bf16=values) if mesh.ranks > 1 else Message(words=values)

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
    return (*loads, *collectives({
        "embed_gather": rounded(columns),
        "decay_gather": Message(words=mesh.local(c.kda.head_dim)),
        "query_gather": Message(words=query),
        "attention_scatter": rounded(columns),
        "attention_gather": rounded(columns),
        "route_gather": route,
        "latent_scatter": Message(words=latent),
        "mlp_scatter": rounded(columns),
        "latent_gather": Message(words=latent),
        "layer_gather": rounded(columns),
        "token_gather": Message(words=2),  # best logit and its id
    }))  # fmt: skip


def layer_steps(layout: Layout, kind: LayerKind, sizes: Settings) -> tuple[Step, ...]:
    """The schedule of a layer.

    Counts of experts are nominal, as if the first ones were all: every slot that is given up takes
    the next expert, and those started are waited for.

    A layer starts the loads of the next layer of its kind, if there is one: see `program`.
    """
    store = "open_store" if kind.mla else "kda_store"
    steps = [
        step("tap", reads=["stream"]),
        step("attention_res", [], ["stream", "residual_sum", "vectors"], ["normed"], ["vectors"]),
        *(_mla(sizes) if kind.mla else _kda()),
        # The raw stream joins the residuals here, at the start of a block of layers.
        step("mlp_residuals", [], ["stream", "residuals", "residual_norms", "vectors"],
             ["residuals", "residual_norms", "residual_sum"]),
        sum_step("attention_sum", "attention_scatter", "attention_gather"),
        step("attention_join", ["attention_gather"], ["stream"], ["stream"]),
        step("mlp_res", [], ["stream", "residual_sum", "vectors"], ["normed"]),
        *(_moe(layout.expert_format, sizes) if kind.moe else _dense()),
        # Mixes with the weights of the next layer, which must therefore be here.
        step("attention_residuals", ["vectors"], ["residuals", "residual_norms", "vectors"],
             ["residual_sum"]),
        step("layer_join", ["layer_gather", store], ["stream"], ["stream"]),
    ]  # fmt: skip
    order = (*MIX, *attention(kind), *JOIN, *feed_forward(kind), *END)
    return tuple(with_tiles(in_order(steps, order), layout.streams[kind]))


def _kda() -> Iterator[Step]:
    yield step("kda_gates", [], ["normed"], ["gates"], ["decay_gather"])
    yield step("kda_in", [], ["normed"], ["projected"])
    yield step("kda_decay", ["decay_gather"], [], ["decay"])
    yield step("kda_delta", ["kda_load"], ["kda_record", "projected", "gates", "decay", "vectors"],
               ["kda_new_record", "attended"], ["kda_load", "kda_store"])  # fmt: skip
    yield step("kda_out", [], ["attended"], ["partial"], ["attention_scatter"])


def _mla(sizes: Settings) -> Iterator[Step]:
    tiles = [("cache_load", sizes.cache_slots)]
    yield step("mla_down", [], ["normed"], [], ["query_gather"])
    yield step("mla_gate", [], ["normed"], ["mla_gates"])
    yield step("mla_query", ["query_gather", "open_load"], ["vectors", "cache_open"],
               ["query", "keys", "cache_new_open"], ["open_load", "open_store"])  # fmt: skip
    # Dead positions are cleared where they lie.
    yield step("mla_attend", tiles, ["keys", "cache_new_open", "cache_tiles"],
               ["cache_tiles", "mixed"], tiles)  # fmt: skip
    yield step("mla_out", [], ["mixed", "mla_gates"], ["attended", "partial"],
               ["attention_scatter"])  # fmt: skip


def _moe(experts: ExpertFormat, sizes: Settings) -> Iterator[Step]:
    # A product of FP8 is weighted for all rows at once, from VMEM.
    weights = ["choice"] if experts is ExpertFormat.FP8 else []
    blocks = [("expert_load", sizes.expert_slots)]
    yield step("route", [], ["normed"], [], ["route_gather"])
    yield step("shared_in", [], ["normed"], ["gate_up", "hidden"])
    yield step("choose", ["route_gather"], ["vectors"], ["choice", "expert_list", "spread"], blocks)
    yield step("experts", blocks, ["experts", "expert_list", "spread", *weights],
               ["expert_hidden", "expert_sum"], [("expert_load", 0), "latent_scatter"])  # fmt: skip
    yield step("shared_out", [], ["hidden"], ["partial"], ["mlp_scatter"])
    yield sum_step("latent_sum", "latent_scatter", "latent_gather")
    yield step("shared_sum", ["mlp_scatter"], [], ["shared"])
    yield step("latent_up", ["latent_gather"], ["vectors", "shared"], [], ["layer_gather"])


def _dense() -> Iterator[Step]:
    yield step("dense_in", [], ["normed"], ["gate_up", "hidden"])
    yield step("dense_out", [], ["hidden"], ["partial"], ["mlp_scatter"])
    yield sum_step("dense_sum", "mlp_scatter", "layer_gather")


def frame_steps(layout: Layout, sizes: Settings) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """What precedes the first layer, and what follows the last."""
    c = layout.config
    kda = ["kda_load"] if c.kda_layers else []
    mla: Copies = ["open_load", ("cache_load", sizes.cache_slots)] if c.mla_layers else []
    prologue = (
        step("begin", starts=["embedding", "vectors", ("tiles", sizes.ring_tiles), *kda, *mla]),
        step("embed", ["embedding"], ["embedding_rows"], [], ["embed_gather"]),
        step("embedded", ["embed_gather", "vectors"], ["vectors"],
             ["stream", "residuals", "residual_norms", "residual_sum"]),
    )  # fmt: skip
    steps = (
        step("output_tap", reads=["stream"]),
        step("output_res", [], ["stream", "residual_sum", "vectors"], ["normed"]),
        step("head", [], ["normed"], [], ["token_gather"]),
        step("token", ["token_gather"]),
    )
    behind = in_order(steps, epilogue(sizes.taps, c.num_hidden_layers))
    return prologue, tuple(with_tiles(behind, layout.head_stream))


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
