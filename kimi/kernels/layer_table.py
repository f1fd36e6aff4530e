"""What the layer loop of the kernel reads about each layer: positions and flags, one row a layer.

The kernel counts nothing while it runs: which tile lies in which slot follows from the layer alone.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kimi.kernels.plan import Plan


class Column(IntEnum):
    """Columns of the table.

    MLA: 1 if the attention is MLA, 0 if it is KDA.
    ATTENTION_TILE, ATTENTION_SLOT: first tile of the layer, and its slot of the ring.
    FEED_TILE, FEED_SLOT: the same of the feed-forward part.
    STATE: position of the layer among those of its kind of attention.
    NEXT_STATE: 1 if another layer of that kind follows.
    EXPERT: first block of the layer in the array of experts.
    STARTS_BLOCK: 1 if the stream so far joins the residuals here.
    RESIDUALS: entries of the residuals, this layer's included.
    TAP: which tap the stream entering the layer is, counted from 1; 0 if it is none.
    """

    MLA = 0
    ATTENTION_TILE = 1
    ATTENTION_SLOT = 2
    FEED_TILE = 3
    FEED_SLOT = 4
    STATE = 5
    NEXT_STATE = 6
    EXPERT = 7
    STARTS_BLOCK = 8
    RESIDUALS = 9
    TAP = 10


def layer_table(plan: Plan) -> npt.NDArray[np.int32]:
    """The table as [layers * columns] int32."""
    layout, config, slots = plan.layout, plan.layout.config, plan.settings.ring_tiles
    layers, taps = range(config.num_hidden_layers), plan.settings.taps
    table = np.zeros((len(layers), len(Column)), np.int32)
    for layer, row in enumerate(table):
        kind = layout.kind(layer)
        of_kind = config.mla_layers if kind.mla else config.kda_layers
        attention = layout.attention_streams[kind.mla]
        shared = layout.feed_forward_streams[kind.moe].start_row > 0
        first = layout.first_tiles[layer]
        feed = first + attention.tiles - shared
        row[Column.MLA] = kind.mla
        row[Column.ATTENTION_TILE], row[Column.ATTENTION_SLOT] = first, first % slots
        row[Column.FEED_TILE], row[Column.FEED_SLOT] = feed, feed % slots
        row[Column.STATE] = of_kind.index(layer)
        row[Column.NEXT_STATE] = layer != of_kind[-1]
        row[Column.EXPERT] = layout.expert_position(layer, 0) if kind.moe else 0
        row[Column.STARTS_BLOCK] = layer % config.attn_res_block_size == 0
        row[Column.RESIDUALS] = layer // config.attn_res_block_size + 1
        row[Column.TAP] = taps.index(layer) + 1 if layer in taps else 0
    return table.reshape(-1)
