"""All-gather and reduce-scatter between ranks, by remote copies alone.

All ranks issue the same copies in the same order. A message lies in `<name>_send`, one for all
peers (gather) or one for each (scatter), and arrives in `<name>_receive` at the sender's number;
the own one is put there directly. Both semaphores of a collective are zero before `start` and after
`wait`. Between two uses of a collective lies another one: see `schedule`.

Rows of a message: for each 128 words the rows of the model, one or a whole register tile.
"""

from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES
from kimi.kernels.context import Core
from kimi.kernels.ops import reduce
from kimi.kernels.ops.lanes import U32, pad_lanes, side_by_side
from kimi.kernels.refs import Ref, Scalar
from kimi.kernels.schedule import Kind, Transfer

AXIS = "ranks"  # of the device mesh


def barrier(k: Core) -> None:
    """All ranks are in the kernel: from here on peers may write."""
    semaphore = pltpu.get_barrier_semaphore()
    for offset in k.mesh.offsets:
        pl.semaphore_signal(semaphore, 1, device_id=(k.mesh.peer(k.rank, offset),))
    pl.semaphore_wait(semaphore, len(k.mesh.offsets))


def _transfer(k: Core, name: str) -> Transfer:
    return next(t for t in k.plan.transfers if t.name == name)


def _encode(transfer: Transfer, values: Array, words: Array | None = None) -> Array:
    """The words [R, rows of 128] of a message.

    Args:
      values: float32 [R, N], rounded to bfloat16 as far as the message says so.
      words: uint32 [R, M], behind them.
    """
    message, parts = transfer.message, []
    if message.bf16:
        packed = reduce.pack_bf16(values[:, : message.bf16])
        parts.append(packed[:, : message.packed_words])
    if values.shape[1] > message.bf16:
        parts.append(pltpu.bitcast(values[:, message.bf16 :], U32))
    if words is not None:
        parts.append(words)
    return pad_lanes(side_by_side(parts), LANES, 0)


def _tokens(k: Core, transfer: Transfer) -> int:
    """Rows of the model in a message."""
    return transfer.message.tokens or k.row_tile


def _put(ref: Ref, index: Scalar, message: Array) -> None:
    count = message.shape[0]
    for row, lane in enumerate(range(0, message.shape[1], LANES)):
        ref[index, row * count : (row + 1) * count, :] = message[:, lane : lane + LANES]


def all_gather(k: Core, name: str, values: Array, words: Array | None = None) -> None:
    """Starts sending the rows of `values` (see `_encode`) to all ranks."""
    transfer = _transfer(k, name)
    count = _tokens(k, transfer)
    message = _encode(transfer, values[:count], None if words is None else words[:count])
    _put(k.ws[transfer.target], k.rank, message)
    if k.mesh.ranks > 1:
        _put(k.ws[transfer.source], 0, message)
        _start(k, transfer)


def reduce_scatter(k: Core, name: str, values: Ref) -> None:
    """Starts sending to every rank its share of the columns of `values` [>= R, N]."""
    transfer = _transfer(k, name)
    send = k.ws[transfer.source]
    width = max(transfer.message.bf16, transfer.message.words)
    for rank in range(k.mesh.ranks):
        part = values[: _tokens(k, transfer), rank * width : (rank + 1) * width]
        _put(send, rank, _encode(transfer, part))
    k.ws[transfer.target][k.rank] = send[k.rank]
    _start(k, transfer)


def _start(k: Core, transfer: Transfer) -> None:
    send, receive = k.ws[transfer.source], k.ws[transfer.target]
    sent, received = k.sems.remote(transfer.name)
    for offset in k.mesh.offsets:
        peer = k.mesh.peer(k.rank, offset)
        source = send.at[peer] if transfer.kind is Kind.REDUCE_SCATTER else send.at[0]
        pltpu.make_async_remote_copy(
            source, receive.at[k.rank], sent, received, device_id=(peer,)
        ).start()


def wait(k: Core, name: str) -> None:
    """Waits until all peers' messages are here and all own ones have left."""
    transfer, peers = _transfer(k, name), len(k.mesh.offsets)
    if not peers:
        return
    # A semaphore counts bytes: one wait of the size of all messages.
    everything = k.ws[transfer.target].at[pl.ds(0, peers)]
    for semaphore in k.sems.remote(name):
        pltpu.make_async_copy(everything, everything, semaphore).wait()


def _received(k: Core, transfer: Transfer) -> Array:
    """What is here of all ranks, uint32 [ranks, R, rows of 128]."""
    ref, tile = k.ws[transfer.target], _tokens(k, transfer)
    parts = [ref[:, row : row + tile, :] for row in range(0, ref.shape[1], tile)]
    return side_by_side(parts, -1)


def gathered(k: Core, name: str, *widths: int) -> list[Array]:
    """What all ranks sent, joined along columns in the order of ranks.

    Args:
      widths: columns that each rank sent of several things side by side; default all one thing.

    Returns: float32 [R, ranks * width] per width.
    """
    transfer = _transfer(k, name)
    message, words = transfer.message, _received(k, transfer)
    values, start = [], 0
    for width in widths or (message.bf16 + message.words,):
        if start < message.bf16:
            values.append(reduce.join_bf16(words, width))
            words = words[..., message.packed_words :]
        else:
            values.append(reduce.join_values(words, width))
            words = words[..., width:]
        start += width
    return values


def receive(k: Core, name: str) -> Array:
    """Waits for what all ranks sent, one thing: float32 [R, ranks * width]."""
    wait(k, name)
    return gathered(k, name)[0]


def receive_words(k: Core, name: str) -> Array:
    """Waits for messages that have only words, uint32 [ranks, R, words]."""
    wait(k, name)
    transfer = _transfer(k, name)
    return _received(k, transfer)[..., : transfer.message.words]


def receive_sum(k: Core, name: str) -> Array:
    """Waits for what all ranks sent and sums it in their order: float32 [R, columns]."""
    wait(k, name)
    transfer = _transfer(k, name)
    message, words = transfer.message, _received(k, transfer)
    if message.bf16:
        return reduce.sum_bf16(words, message.bf16)
    return reduce.sum_values(words)[:, : message.words]


def sum_and_send(k: Core, scattered: str, then: str) -> None:
    """Sums what a reduce-scatter brought, and sends the sum to all."""
    all_gather(k, then, receive_sum(k, scattered))
