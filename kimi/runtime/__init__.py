"""Decoding on devices: placed weights, the state of sequences, and compiled loops over the kernels.

`model` places weights, `state` is what goes from call to call, `calls` are the kernels on one rank,
`blocks` decodes one sequence in drafted blocks, `batch` several sequences token by token, and
`decoder` is their host side.
"""
