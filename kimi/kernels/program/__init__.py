"""The phases of the kernel as code, one function each, named as in `phases`.

Each waits for what the table says, computes by `ops`, and starts what the table says.
"""
