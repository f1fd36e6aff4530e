"""The DSpark draft kernel: one Pallas call proposes a block of tokens. See DESIGN.md.

    layout = DraftLayout(draft_config, target_config, mesh)       # mesh: of the target
    plan = DraftPlan(layout, default_settings(layout, context))   # context: without a window only
    draft = kernel.build(plan, interpret)                         # inside shard_map over AXIS

    context, tokens, confidence = draft(
        step, taps, dense, vectors, embedding, markov_in, markov_out, context
    )

All arrays are one rank's own, without an axis of ranks; with one rank no `shard_map` is needed.

Arguments (in this order):
  step         int32 [3], `kernel.step_input(anchor, length, kept)`:
                 anchor   the newest token, which the target has not seen yet
                 length   committed tokens in the context before this call
                 kept     rows of `taps` that are committed now, 0 to 8: positions length to
                          length + kept - 1; the anchor is at position length + kept
  taps         float32 [taps, 8, D], `refs.Results.taps` of the target's step, the same on all
               ranks; rows from `kept` on may hold anything
  dense, vectors, embedding, markov_in, markov_out
               weights: `DraftWeights` of this rank, `layout.pack(tensors, rank)`
  context      uint32 [layers, blocks, words, 128], see `context.DraftContext`; donate it: it is
               updated in place. `plan.context.empty()` to begin with

Results:
  context      the argument with `kept` more positions
  tokens       int32 [8, 128], lane-replicated; row j is the candidate for position
               length + kept + 1 + j; rows from the drafter's block size on are 0
  confidence   float32 [8, 128], lane-replicated: probability that row j is accepted, given that
               all before it were; rows from the block size on are 0

After a call the caller's length is `length + kept`. All ranks return the same tokens and
confidence, bit by bit.
"""
