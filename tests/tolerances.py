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
# Delta rule.
OPS_DELTA = 1e-4
OPS_ATTENTION = 4e-3
OPS_MERGE = 1e-3
OPS_EXPERT = 1e-5
OPS_THREE_PASSES = 2**-16
