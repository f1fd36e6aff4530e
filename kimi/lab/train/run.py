"""The directory of a run: what lies where, and what every step reads from it."""

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kimi.assets import TINY_K3
from kimi.config import DraftConfig, ModelConfig
from kimi.errors import InputError
from kimi.fields import load_json
from kimi.lab.train.corpus import PROSE_FILE, Prose
from kimi.lab.train.recipe import Recipe
from kimi.text.tokenizer import CONFIG_FILE, RANKS_FILE, Tokenizer

CONFIG = "config.json"
DRAFTER = "dspark"
COPIED = (CONFIG, "generation_config.json", RANKS_FILE, CONFIG_FILE, f"{DRAFTER}/{CONFIG}")
"""Files of a checkpoint that training does not make: the template."""


@dataclass(frozen=True)
class Run:
    """One run of the pipeline.

    Attributes:
      out: its directory. `target.safetensors`, `drafter.safetensors` and `calibrated.safetensors`
        are what the steps hand over, `checkpoint/` is the result.
      corpus: directory with `prose.npz`, see `corpus`.
      recipe: sizes and schedules.
    """

    out: Path
    corpus: Path
    recipe: Recipe

    @property
    def target_file(self) -> Path:
        """The trained target, values as stored in a checkpoint, float32."""
        return self.out / "target.safetensors"

    @property
    def drafter_file(self) -> Path:
        """The trained drafter, likewise."""
        return self.out / "drafter.safetensors"

    @property
    def calibrated_file(self) -> Path:
        """The drafter after the calibration of its confidence head."""
        return self.out / "calibrated.safetensors"

    @property
    def scores_file(self) -> Path:
        """The scores, by name."""
        return self.out / "scores.json"

    @property
    def checkpoint(self) -> Path:
        """The exported folder."""
        return self.out / "checkpoint"

    def state_file(self, step: str) -> Path:
        """Where the training of "target" or "drafter" keeps its state until it ends."""
        return self.out / f"{step}-state.safetensors"

    @cached_property
    def template(self) -> Path:
        """A folder with the files of `COPIED`: sizes, vocabulary, chat format."""
        return small_template(self.out / "template") if self.recipe.shrink else TINY_K3

    @cached_property
    def config(self) -> ModelConfig:
        """Sizes of the target."""
        return ModelConfig.from_dir(self.template)

    @cached_property
    def draft_config(self) -> DraftConfig:
        """Sizes of the drafter."""
        return DraftConfig.from_dir(self.template / DRAFTER)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary."""
        return Tokenizer.from_dir(self.template)

    @cached_property
    def prose(self) -> Prose:
        """The corpus. Raises: InputError if it is missing."""
        return Prose.load(self.corpus / PROSE_FILE)


_SMALL_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 32,
    "routed_expert_hidden_size": 32,
}
_SMALL_LINEAR: dict[str, Any] = {
    "kda_layers": [1],
    "full_attn_layers": [2],
    "num_heads": 2,
    "head_dim": 32,
}
_SMALL_DRAFTER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "sliding_window": 96,
    "max_window_layers": 1,
    "max_position_embeddings": 512,
    "layer_types": ["sliding_attention"],
}


def small_template(path: Path) -> Path:
    """Writes a template with a tenth of the shipped sizes and the same vocabulary to `path`."""
    for name in COPIED:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(TINY_K3 / name, path / name)
    target = load_json(path / CONFIG)
    text = target["text_config"]
    text.update(_SMALL_TEXT)
    text["linear_attn_config"].update(_SMALL_LINEAR)
    drafter = load_json(path / DRAFTER / CONFIG)
    drafter.update(aux_hidden_state_layer_ids=[1, 2], block_size=4, markov_rank=16)
    drafter["transformer_layer_config"].update(_SMALL_DRAFTER)
    for file, data in ((path / CONFIG, target), (path / DRAFTER / CONFIG, drafter)):
        file.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return path


def run_in(out: Path, corpus: Path, recipe: Recipe) -> Run:
    """A run, with its directory made. Raises: InputError if it cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be made a directory ({error.strerror})") from None
    return Run(out, corpus, recipe)
