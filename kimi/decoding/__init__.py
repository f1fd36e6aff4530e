"""Token-by-token decoding: sampling, speculative verification and the loop around them."""
