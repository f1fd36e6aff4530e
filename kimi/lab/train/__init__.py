"""The small trained K3: the data it saw, and how it was made; the files are in `kimi.assets`.

Everything here can be rerun, by `python -m kimi.lab`. The generated part of the data comes from
seeded generators (`problems`, `stories`, `dialogue`), the prose from public-domain texts and
WordNet glosses that Debian packages (`corpus`), and the 2,048-id vocabulary from
`tokenizer_training`.

Target and drafter are trained on top of the reference model (`target`, `drafter`, `calibration`,
`layout`, `scores`). The steps hand over plain files in one folder, see `run.Run`; `pipeline` runs
them all.
"""
