"""The files that are shipped: the small K3, and the text that benchmark and evaluations begin with.

What made them is in `kimi.lab.train`; see the model card beside the files.
"""

from pathlib import Path

TINY_K3 = Path(__file__).resolve().parent / "tiny_k3"
"""Folder of the checkpoint, its drafter (`dspark/`), vocabulary and held-out prose."""

GRADE_SCHOOL = TINY_K3 / "grade_school.jsonl"
"""Word problems in the format of GSM8K, an object with `question` and `answer` a line."""

PROMPTS = TINY_K3 / "prompts.jsonl"
"""Problems and requests for stories in turn, an object with `messages` and `thinking` a line."""
