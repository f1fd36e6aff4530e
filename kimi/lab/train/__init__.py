"""The small trained K3: the data it saw, how it was made, and the files themselves.

Everything here can be rerun. The generated part of the data comes from seeded generators
(`problems`, `stories`, `dialogue`), the prose from public-domain texts and WordNet glosses that
Debian packages (`corpus`), and the 2,048-id vocabulary from `tokenizer_training`.
"""

from pathlib import Path

ASSETS = Path(__file__).resolve().parent / "assets"
"""Directory of the shipped checkpoint, its drafter (`dspark/`), vocabulary and held-out prose."""
