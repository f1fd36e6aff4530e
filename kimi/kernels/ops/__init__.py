"""Array-only math of the kernels: values in, values out, no refs, no copies, no collectives.

Everything lowers inside a Pallas TPU kernel, runs in interpret mode, and under `jax.jit` on a CPU.
Shapes are those of one rank. The layout words used throughout:

  row tile: [8, N] float32, one token a sublane. Dead rows may hold anything, NaN included; they
    reach no valid row.
  lane-replicated: a per-row number stored on all 128 lanes, [8, 128]. Reading one lane of a tile
    and spreading it costs a trip through the cross-lane unit; a replicated tile costs nothing.
  vector: a small tensor of n elements as it is stored, [n / 128, 128] float32; row i goes with
    lanes 128 i .. 128 i + 127 of a row tile.
"""
