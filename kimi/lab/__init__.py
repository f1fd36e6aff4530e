"""The laboratory: what `kimi` was made with and measured by, and does not need to run.

    predict     compiles kernels for TPU v7 without one, and predicts their time
    train       makes the small K3 and the texts that are shipped
    bench       how fast this machine loads and re-encodes weights
    commands    `python -m kimi.lab COMMAND`

It is not in the wheel; nothing of `kimi` outside imports it.
"""
