"""Configuration: frozen, checked once when it is made. What is computed from it lives elsewhere."""

from tahr.config.checks import TOKEN, Range, check_ranges, keep_conventions, whole
from tahr.config.engine import SCHEDULING_POLICIES, EngineConfig, kv_type
from tahr.config.lora import LORA_SCALE, LoraChoice, LoraFile, clean_lora
from tahr.config.sampling import (
    GREEDY,
    NEUTRAL_SAMPLING,
    PRESETS,
    SamplingParams,
    precedence,
    preset,
    sampling_names,
    sampling_values,
)
from tahr.config.sampling_parts import UNLIMITED_TOKENS

__all__ = [
    "GREEDY",
    "LORA_SCALE",
    "NEUTRAL_SAMPLING",
    "PRESETS",
    "SCHEDULING_POLICIES",
    "TOKEN",
    "UNLIMITED_TOKENS",
    "EngineConfig",
    "LoraChoice",
    "LoraFile",
    "Range",
    "SamplingParams",
    "check_ranges",
    "clean_lora",
    "keep_conventions",
    "kv_type",
    "precedence",
    "preset",
    "sampling_names",
    "sampling_values",
    "whole",
]
