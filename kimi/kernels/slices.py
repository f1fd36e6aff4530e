"""Which slice of which checkpoint tensor a rank multiplies by: every dense matrix, in order of use.

Everything is divided over all ranks, nothing dense is held twice. A projection into heads (or into
anything that is gathered afterwards) is divided by outputs, a projection out of heads by inputs
(its partial results are summed by a reduce-scatter).
"""

from collections.abc import Iterator

from kimi.config import ModelConfig
from kimi.kernels.matrix import Matrix, Piece
from kimi.kernels.mesh import Mesh, Span


def layer_matrices(c: ModelConfig, mesh: Mesh, rank: int, layer: int) -> tuple[Matrix, ...]:
    """The matrices of a layer; names and shapes are those of every layer of its kind and rank."""
    attention = attention_matrices(c, mesh, rank, c.is_mla(layer))
    return (*attention, *feed_forward_matrices(c, mesh, rank, c.is_moe(layer)))


def attention_matrices(c: ModelConfig, mesh: Mesh, rank: int, mla: bool) -> tuple[Matrix, ...]:
    """The first half of a layer."""
    return tuple(_mla(c, mesh, rank) if mla else _kda(c, mesh, rank))


def feed_forward_matrices(c: ModelConfig, mesh: Mesh, rank: int, moe: bool) -> tuple[Matrix, ...]:
    """The second half of a layer; of the experts only what is dense."""
    return tuple(_moe(c, mesh, rank) if moe else _dense(c, mesh, rank))


def head_matrix(c: ModelConfig, mesh: Mesh, rank: int) -> Matrix:
    """The language model head, divided over the vocabulary."""
    rows = mesh.span(c.vocab_size, rank)
    return Matrix("head", (Piece("lm_head.weight", rows, (0, c.hidden_size)),))


def _heads(count: int, width: int, mesh: Mesh, rank: int) -> Span:
    """The channels of this rank's heads."""
    start, stop = mesh.span(count, rank)
    return start * width, stop * width


def _kda(c: ModelConfig, mesh: Mesh, rank: int) -> Iterator[Matrix]:
    hidden = (0, c.hidden_size)
    own = _heads(c.kda.num_heads, c.kda.head_dim, mesh, rank)

    def project(name: str, rows: Span) -> Piece:
        return Piece(f"self_attn.{name}_proj.weight", rows, hidden)

    # First what the other ranks wait for: it travels while q, k, v and g are computed.
    gates = (
        project("f_a", mesh.span(c.kda.head_dim, rank)),
        project("b", mesh.span(c.kda.num_heads, rank)),
    )
    yield Matrix("kda_gates", gates)
    yield Matrix("kda_in", tuple(project(name, own) for name in "qkvg"))
    decay = Piece("self_attn.f_b_proj.weight", own, (0, c.kda.head_dim))
    yield Matrix("kda_decay", (decay,))
    yield Matrix("kda_out", (Piece("self_attn.o_proj.weight", hidden, own),))


def _mla(c: ModelConfig, mesh: Mesh, rank: int) -> Iterator[Matrix]:
    hidden, rank_inputs = (0, c.hidden_size), (0, c.kv_lora_rank)
    values = _heads(c.num_attention_heads, c.v_head_dim, mesh, rank)
    heads = range(*mesh.span(c.num_attention_heads, rank))
    down = (
        Piece("self_attn.q_a_proj.weight", mesh.span(c.q_lora_rank, rank), hidden),
        Piece("self_attn.kv_a_proj_with_mqa.weight", mesh.span(c.latent_cache_width, rank), hidden),
    )
    yield Matrix("mla_down", down)
    yield Matrix("mla_gate", (Piece("self_attn.g_proj.weight", values, hidden),))
    yield Matrix("mla_query", _queries(c, heads))
    for i, head in enumerate(heads):
        start = head * (c.qk_nope_head_dim + c.v_head_dim)
        rows = start, start + c.qk_nope_head_dim
        key = Piece("self_attn.kv_b_proj.weight", rows, rank_inputs, transposed=False)
        yield Matrix(f"mla_key_{i}", (key,))
    for i, head in enumerate(heads):
        stop = (head + 1) * (c.qk_nope_head_dim + c.v_head_dim)
        value = Piece("self_attn.kv_b_proj.weight", (stop - c.v_head_dim, stop), rank_inputs)
        yield Matrix(f"mla_value_{i}", (value,))
    yield Matrix("mla_out", (Piece("self_attn.o_proj.weight", hidden, values),))


def _queries(c: ModelConfig, heads: range) -> tuple[Piece, ...]:
    """q_b with the content parts of all heads first, so that each starts at a lane multiple."""
    name, inputs, size = "self_attn.q_b_proj.weight", (0, c.q_lora_rank), c.qk_head_dim
    content = [(h * size, h * size + c.qk_nope_head_dim) for h in heads]
    shared = [(h * size + c.qk_nope_head_dim, (h + 1) * size) for h in heads]
    return tuple(Piece(name, rows, inputs) for rows in (*content, *shared))


def _moe(c: ModelConfig, mesh: Mesh, rank: int) -> Iterator[Matrix]:
    hidden, latent = (0, c.hidden_size), c.routed_expert_hidden_size
    stem = "block_sparse_moe."
    route = (
        Piece(f"{stem}routed_expert_down_proj.weight", mesh.span(latent, rank), hidden),
        Piece(f"{stem}gate.weight", mesh.span(c.num_experts, rank), hidden),
    )
    yield Matrix("route", route)
    yield from _mlp(f"{stem}shared_experts", "shared", c.shared_intermediate_size, c, mesh, rank)
    up = Piece(f"{stem}routed_expert_up_proj.weight", mesh.span(c.hidden_size, rank), (0, latent))
    yield Matrix("latent_up", (up,))


def _dense(c: ModelConfig, mesh: Mesh, rank: int) -> Iterator[Matrix]:
    return _mlp("mlp", "dense", c.intermediate_size, c, mesh, rank)


def _mlp(
    stem: str, name: str, width: int, c: ModelConfig, mesh: Mesh, rank: int
) -> Iterator[Matrix]:
    own, hidden = mesh.span(width, rank), (0, c.hidden_size)
    gate_up = tuple(Piece(f"{stem}.{part}_proj.weight", own, hidden) for part in ("gate", "up"))
    yield Matrix(f"{name}_in", gate_up)
    down = Piece(f"{stem}.down_proj.weight", hidden, own)
    yield Matrix(f"{name}_out", (down,))
