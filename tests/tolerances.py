"""Every tolerance of the test suite, with its reason. All comparisons are in float32.

Sums of a few hundred products of order-one numbers differ by a few units in the last place (6e-8)
between implementations, and a layer stack multiplies that by its depth and its gain.
"""

# Logits and streams of a five-layer model against mlx-lm: other summation orders in every matmul;
# measured 4e-5 at a scale of 20.
K3_GOLDEN = 1e-4
# A two-layer drafter against speculators (PyTorch): measured 2e-6 at a scale of 5.
DRAFT_GOLDEN = 1e-4
# Confidence is a sigmoid of such a logit (slope 1/4): measured 2e-7.
CONFIDENCE_GOLDEN = 1e-5
# One KDA layer, chunked form against the recurrence: sums of 16-token products against chained
# updates, relative to the largest output; measured 4e-6 over all decays.
KDA_CHUNK = 2e-5
# The same formula in float64 against float32: rounding of single operations.
FORMULA = 2e-6
# The whole small K3 in two float32 orders (chunks, rows, single steps): six layers.
MODEL_ORDERS = 2e-4
# Experts gathered or dense: the same products in another order of summation.
EXPERT_FORMS = 1e-5

# Array math of the kernels (tests/unit/kernels_ops), relative to the largest expected value.
# Float32 sums over a few hundred numbers.
OPS_SUMS = 1e-6
# One rounding to bfloat16: half a unit in the last of 8 bits.
OPS_BF16 = 1 / 256 + 1e-5
# |a + b|^2 from |a|^2, |b|^2 and a.b, relative to the summands.
OPS_CANCELLED = 1e-6
# Products of float32 in three bfloat16 passes, relative to sum |a| |b|: what is left out and
# rounded is at most 3 x 2^-16; measured half of it.
OPS_THREE_PASSES = 3 * 2**-16
# The delta rule with such products, relative to the largest output or memory; measured 6e-6 and
# 1.6e-5 over all decays, with nearly equal keys.
OPS_DELTA = 4e-5
# Attention: probabilities are rounded to bfloat16 as matmul operands (2^-9), at most so much of the
# largest mixed value; measured 1.1e-3.
OPS_ATTENTION = 1 / 512
# The same in two groupings of positions, whose probabilities round against different maxima;
# measured 8.6e-4.
OPS_MERGE = 1 / 512
# Experts: exact weights and scales, float32 sums over up to 640 inputs; measured 6e-7.
OPS_EXPERT = 2e-6
# One program inside a Pallas kernel in interpret mode and outside: only fusion may differ.
OPS_INTERPRETED = 1e-6

# The megakernel. Its matmul operands are bfloat16 (2^-9 relative each), which moves router scores:
# where two experts are nearly equal another one is chosen, as it would be in the published bfloat16
# code. Hence two bounds, relative to the largest value: the worst position may have such a choice,
# the typical one has none.
# Against the reference in float32: measured 0.01 and 7e-4 over a prompt and 32 tokens.
KERNEL_LOGITS = 0.05
KERNEL_LOGITS_TYPICAL = 2e-3
# The drafter's taps, each relative to its own largest value. Measured 0.12 at one position of 115,
# whose last chosen and first rejected expert are 1.2e-4 apart in the first of these layers, and
# 0.05 at one with 7e-6; 0.015 at all others.
KERNEL_TAPS = 0.15
KERNEL_TAPS_TYPICAL = 5e-3  # measured 0.0021: early streams are small beside what is added to them
# Blocks and batches against single rows, other orders of float32 sums in front of the same
# roundings: measured 0.009 and 0.002.
KERNEL_FORMS = 0.05
KERNEL_FORMS_TYPICAL = 5e-3
# Attention over many tiles of the cache against one tile: probabilities are rounded to bfloat16
# (2^-9) relative to the largest score so far. Measured 0.0044 of the largest logit.
CACHE_TILES = 0.01
# 2, 4 and 8 ranks against one, partial sums crossing as bfloat16: measured 0.023 and 0.0016.
KERNEL_RANKS = 0.1
KERNEL_RANKS_TYPICAL = 5e-3

# The draft kernel against the reference in float32: matmul operands and messages are bfloat16.
# How far the chosen token's logit may be below the best one, relative to the largest, given the
# same tokens before: only nearly equal tokens may be confused. Measured 0.0018.
DRAFT_LOGITS = 0.004
# A sigmoid of such a logit (slope 1/4); measured 0.0053.
DRAFT_CONFIDENCE = 0.012
# Keys and values are stored as bfloat16 (2^-9) and come from two such products; relative to the
# largest; measured 0.005.
DRAFT_CONTEXT = 0.01
# Tokens a step over 512 tokens against the reference's loop, relative: where two drafts are nearly
# equal the one loop accepts one more, and later blocks begin elsewhere. Measured 0.03.
ACCEPTANCE = 0.05

# Prompts in chunks (kimi.prefill).
# The delta rule in chunks of 64 against the recurrence: as KDA_CHUNK with four times as long sums.
PREFILL_DELTA = 4e-5
# Experts: a hidden value near the middle of two bfloat16 numbers may round to either of them
# (2^-9), as its float32 sum has another order; relative to the largest output.
PREFILL_EXPERTS = 2e-3
# States and taps behind a prompt against token-by-token decoding by the kernel, relative to the
# largest value of a layer: the kernel's delta rule is of three bfloat16 passes, that of a chunk of
# float32, in front of the same roundings to bfloat16; a token whose experts are nearly equal may
# take others, as with KERNEL_FORMS. Measured, on random weights: states 0.0055, typically 0.002;
# taps 0.022, typically 0.004.
PREFILL_STATES = 0.02
PREFILL_STATES_TYPICAL = 5e-3
PREFILL_TAPS = 0.05
PREFILL_TAPS_TYPICAL = 8e-3
# One token in so many may have taken another expert of nearly equal score, after which its tap is
# another one: of random weights, whose scores are 0 or 1 but for a few, two of 257 have a gap below
# 0.0044 to the next expert. There it is the kernel that differs from float32 (0.42) and the chunk
# that does not (0.017 at most).
PREFILL_CHOICES = 120
# Of the small K3 most tokens have such a pair in some layer: 94 of 100 a gap below 0.0015, while
# roundings of products alone move scores by up to 0.003 (the reference with them against float32).
# So what is compared at every position is a model whose bias chooses (at most 0.03, typically
# 0.005); of the trained one no more tokens may differ than between the reference in the published
# rounding and in float32. Measured, of 189: 2 on eight ranks, 6 on four.

# Probability of a drafted token, relative: sums of float32 exponentials in another order, over up
# to 163,840 tokens and 32 ranks.
SAMPLED_CHANCE = 2e-5
