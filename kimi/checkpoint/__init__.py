"""Checkpoints in the published layout: safetensors files, their names, and how to read them."""

from kimi.checkpoint.files import SafetensorsFile, TensorInfo
from kimi.checkpoint.inspection import Row, Summary
from kimi.checkpoint.reader import Checkpoint, DraftCheckpoint, PackedWeight, TensorStore

__all__ = [
    "Checkpoint",
    "DraftCheckpoint",
    "PackedWeight",
    "Row",
    "SafetensorsFile",
    "Summary",
    "TensorInfo",
    "TensorStore",
]
