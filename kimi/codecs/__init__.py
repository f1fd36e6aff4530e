"""Number formats of stored weights: MXFP4 as published, FP8 as the kernels read it."""
