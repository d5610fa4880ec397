"""How a model's makers want it sampled: what its files say, then what its family recommends."""

from collections.abc import Mapping
from typing import Any

from tahr.config import GREEDY, SamplingParams
from tahr.errors import ConfigError, CorruptFile
from tahr.models.family import Family

HF_KEYS = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
    "repeat_last_n": "general.sampling.penalty_last_n",
}


def recommended(generation: Mapping[str, Any], metadata: Mapping[str, Any], family: Family) -> SamplingParams:
    """The settings of generation_config.json, then those of GGUF metadata, then the family's."""
    if generation.get("do_sample") is False:
        return GREEDY
    found = settings_in(metadata, GGUF_KEYS) | settings_in(generation, HF_KEYS)
    try:
        return SamplingParams(**found).over(family.sampling)
    except ConfigError as error:
        raise CorruptFile(f"The model's own sampling defaults are wrong: {error} Fetch the model again.") from error


def settings_in(fields: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {name: fields[key] for name, key in keys.items() if fields.get(key) is not None}
