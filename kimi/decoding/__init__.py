"""Decoding, whatever runs the model: one loop on the device, and its host side.

`backend` says what the loop asks of a model, `reference` is the backend of plain JAX (the kernels'
is `kimi.runtime`), `loop` the traced loop, `programs` its compiled form, `decoder` the host side.
"""
