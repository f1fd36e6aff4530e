"""The DSpark draft kernel: one Pallas call proposes a block of tokens. See DESIGN.md.

    layout = DraftLayout(draft_config, target_config, mesh)       # mesh: of the target
    plan = DraftPlan(layout, default_settings(layout, context))   # context: without a window only
    draft = kernel.build(plan, interpret)                         # inside shard_map over AXIS

    cache, tokens, confidence = draft(
        step, taps, dense, vectors, embedding, markov_in, markov_out, cache
    )

All arrays are one rank's own, without an axis of ranks; with one rank no `shard_map` is needed.

Arguments (in this order):
  step         int32 [3], `kernel.step_input(anchor, length, num_accepted)`:
                 anchor         the newest token, which the target has not seen yet
                 length         committed tokens in the cache before this call
                 num_accepted   rows of `taps` that are committed now, 0 to 8: positions length to
                                length + num_accepted - 1; the anchor is at the next position
  taps         float32 [taps, 8, D], `taps` of the target's step, the same on all
               ranks; rows from `num_accepted` on may hold anything
  dense, vectors, embedding, markov_in, markov_out
               weights: `DraftWeights` of this rank, `layout.pack(tensors, rank)`
  cache        uint32 [layers, blocks, words, 128], see `cache.DraftCache`; donate it: it is
               updated in place. `plan.cache.empty()` to begin with

Results:
  cache        the argument with `num_accepted` more positions
  tokens       int32 [8, 128], lane-replicated; row j is the candidate for position
               length + num_accepted + 1 + j; rows from the drafter's block size on are 0
  confidence   float32 [8, 128], lane-replicated: probability that row j is accepted, given that
               all before it were; rows from the block size on are 0

After a call the caller's length is `length + num_accepted`. All ranks return the same tokens and
confidence, bit by bit.
"""
