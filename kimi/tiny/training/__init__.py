"""Training of the small K3 and its drafter, on top of the reference model.

The steps hand over plain files in one directory (see `run.Run`); each has its own command in
`kimi.tiny`, and `kimi.tiny.pipeline` runs them all.
"""
