"""Configurations of Kimi K3 and its DSpark drafter."""

from kimi.config.draft import DraftConfig
from kimi.config.model import KdaConfig, ModelConfig

__all__ = ["DraftConfig", "KdaConfig", "ModelConfig"]
