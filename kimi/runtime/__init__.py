"""The kernels' side of decoding: placed weights, caches on devices, and the backend of the loop.

`model` places weights, `state` is what the kernels carry from call to call, `backend` makes kernel
calls of what `kimi.decoding` asks for, `files` opens a model for it.
"""
