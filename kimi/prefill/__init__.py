"""Prompts in chunks: many tokens through all layers, into the decode kernel's own caches.

A jitted program inside `shard_map` over `kernels.collectives.AXIS`, of ordinary JAX operations and
two Pallas kernels, for experts and delta rule; `DESIGN.md` tells where its time goes. It reads the
arrays that the decode kernel reads, see `layout.shapes`, and leaves behind what that kernel would:
`records.KdaRecord`, `records.LatentCache` and the drafter's ring. Nothing is held twice: a layer's
tiles are turned into matrices while it runs.

| module | decides |
|---|---|
| `chunks` | chunk sizes, and which of them a prompt takes |
| `collectives` | how tokens and columns are divided over ranks |
| `matrices` | products with tiles of the dense stream |
| `pairs` | words of two bfloat16, as caches and messages have them |
| `mixing` | residual mixes and norms of the tokens of a rank |
| `kda`, `delta` | a KDA layer; the delta rule in chunks |
| `mla` | an MLA layer: blockwise softmax over the transposed cache |
| `moe`, `routing`, `experts` | an expert layer; tokens sorted by expert; the grouped kernel |
| `drafter` | the drafter's context from the taps |
| `program`, `prompt` | the layer loop of a chunk; target and drafter |

Division over ranks: the residual stream and its mixes belong to tokens, each rank has T / R of
them; products belong to columns, each rank has its columns for all T. Between the two: an
all-gather of normed rows before a product, an all-to-all of partial sums behind it, which are
summed in the order of ranks.
"""
