"""The families Tahr knows, and how a file says which one it is."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tahr.errors import UnsupportedModel
from tahr.models.config.record import ModelConfig
from tahr.models.drafters.reading import refuse_drafter
from tahr.models.encoders.bert import BERT, ROBERTA
from tahr.models.encoders.embedding_gemma import GEMMA_EMBEDDING
from tahr.models.encoders.modern_bert import MODERN_BERT
from tahr.models.encoders.nomic_bert import NOMIC_BERT
from tahr.models.families.bitnet import BITNET
from tahr.models.families.cohere import COHERE, COHERE2
from tahr.models.families.gemma import GEMMA, GEMMA2
from tahr.models.families.gemma4 import GEMMA4
from tahr.models.families.glm4 import GLM, GLM4
from tahr.models.families.gpt.bloom import BLOOM
from tahr.models.families.gpt.falcon import FALCON
from tahr.models.families.gpt.gpt2 import GPT2
from tahr.models.families.gpt.gpt_bigcode import GPT_BIGCODE
from tahr.models.families.gpt.gpt_neox import GPT_NEOX
from tahr.models.families.gpt.mpt import MPT
from tahr.models.families.gpt.phi import PHI
from tahr.models.families.gpt.stablelm import STABLELM
from tahr.models.families.gpt.starcoder2 import STARCODER2
from tahr.models.families.granite import GRANITE
from tahr.models.families.granite_moe import GRANITE_MOE
from tahr.models.families.hybrid.granite4 import GRANITE_4
from tahr.models.families.hybrid.qwen3_next import QWEN3_NEXT
from tahr.models.families.llama import INTERNLM3, LLAMA, MINISTRAL, MIXTRAL
from tahr.models.families.minicpm import MINICPM
from tahr.models.families.moe.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, MISTRAL4
from tahr.models.families.moe.glm4_moe import GLM4_MOE
from tahr.models.families.moe.gpt_oss import GPT_OSS
from tahr.models.families.moe.llama4 import LLAMA4
from tahr.models.families.moe.phimoe import PHIMOE
from tahr.models.families.olmo import OLMO2, OLMO3
from tahr.models.families.phi3 import PHI3
from tahr.models.families.qwen2 import QWEN2, QWEN2_MOE
from tahr.models.families.qwen3 import QWEN3, QWEN3_MOE
from tahr.models.families.smollm3 import SMOLLM3
from tahr.models.family import Family
from tahr.models.files.gguf import read_gguf
from tahr.models.files.hf import read_hf
from tahr.models.speaking.qwen3_tts import QWEN3_TTS
from tahr.models.towers.chinese_clip import CHINESE_CLIP
from tahr.models.towers.clip import CLIP
from tahr.models.towers.gemma3 import GEMMA3
from tahr.models.towers.internvl import INTERNVL
from tahr.models.towers.llava import LLAVA, LLAVA_NEXT
from tahr.models.towers.pixtral import MINISTRAL3, MISTRAL
from tahr.models.towers.qwen_vl import QWEN2_5_VL, QWEN2_VL, QWEN3_5, QWEN3_5_MOE, QWEN3_VL, QWEN3_VL_MOE
from tahr.models.towers.siglip import SIGLIP, SIGLIP2
from tahr.models.towers.smolvlm import IDEFICS3, SMOLVLM
from tahr.models.towers.whisper import WHISPER
from tahr.weights.tensor import HostTensor

# Keys are the `model_type` of config.json; some GGUF architectures have the same names.
FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "internlm3": INTERNLM3,
    "minicpm": MINICPM,
    "ministral": MINISTRAL,
    "ministral3": MINISTRAL3,
    "mixtral": MIXTRAL,
    "smollm3": SMOLLM3,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "phi3": PHI3,
    "phimoe": PHIMOE,
    "glm": GLM,
    "glm4": GLM4,
    "glm4_moe": GLM4_MOE,
    "glm4_moe_lite": GLM4_MOE_LITE,
    "llama4": LLAMA4,
    "llama4_text": LLAMA4,
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,
    "mistral4": MISTRAL4,
    "gpt_oss": GPT_OSS,
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5": QWEN3_5,
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_moe": QWEN3_5_MOE,
    "qwen3_5_moe_text": QWEN3_5_MOE,
    "granite": GRANITE,
    "granitemoe": GRANITE_MOE,
    "granitemoehybrid": GRANITE_4,
    "granitemoeshared": GRANITE_MOE,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "gemma4": GEMMA4,
    "gemma4_text": GEMMA4,
    "bitnet": BITNET,
    "cohere": COHERE,
    "cohere2": COHERE2,
    "stablelm": STABLELM,
    "starcoder2": STARCODER2,
    "gpt2": GPT2,
    "gpt_neox": GPT_NEOX,
    "falcon": FALCON,
    "bloom": BLOOM,
    "mpt": MPT,
    "phi": PHI,
    "gpt_bigcode": GPT_BIGCODE,
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "modernbert": MODERN_BERT,
    "nomic_bert": NOMIC_BERT,
    "clip": CLIP,
    "chinese_clip": CHINESE_CLIP,
    "siglip": SIGLIP,
    "siglip2": SIGLIP2,
    "whisper": WHISPER,
    "qwen3_tts": QWEN3_TTS,
    "qwen2_vl": QWEN2_VL,
    "qwen2_5_vl": QWEN2_5_VL,
    "qwen3_vl": QWEN3_VL,
    "qwen3_vl_moe": QWEN3_VL_MOE,
    "llava": LLAVA,
    "llava_next": LLAVA_NEXT,
    "internvl": INTERNVL,
    "smolvlm": SMOLVLM,
    "idefics3": IDEFICS3,
}
# GGUF architectures that have other names than the `model_type` of the same family.
ARCHITECTURES: dict[str, Family] = {
    "qwen2moe": QWEN2_MOE,
    "qwen3moe": QWEN3_MOE,
    "qwen3next": QWEN3_NEXT,
    "qwen35": QWEN3_5,
    "qwen35moe": QWEN3_5_MOE,
    "mistral3": MINISTRAL3,
    "chatglm": GLM,
    "glm4moe": GLM4_MOE,
    "deepseek2": DEEPSEEK_V3,
    "gpt-oss": GPT_OSS,
    "command-r": COHERE,
    "gptneox": GPT_NEOX,
    "phi2": PHI,
    "starcoder": GPT_BIGCODE,
    "bitnet-b1.58": BITNET,
    "granitehybrid": GRANITE_4,
    "gemma-embedding": GEMMA_EMBEDDING,
    "modern-bert": MODERN_BERT,
    "nomic-bert": NOMIC_BERT,
    "qwen2vl": QWEN2_VL,
    "qwen3vl": QWEN3_VL,
    "qwen3vlmoe": QWEN3_VL_MOE,
}
# Multimodal checkpoints whose text model says itself what it is.
WRAPPERS = frozenset(["mistral3"])

# A file of unknown type is read as the first family whose pattern its name matches.
NAME_HINTS: tuple[tuple[str, str], ...] = (
    (r"qwen-?3\.5.*-a\d+b", "qwen3_5_moe"),
    (r"qwen-?3\.5", "qwen3_5"),
    (r"qwen-?3-next", "qwen3_next"),
    (r"qwen-?3.*-a\d+b", "qwen3_moe"),
    (r"qwen-?3", "qwen3"),
    (r"qwen-?2(\.5)?", "qwen2"),
    (r"gemma-?4", "gemma4"),
    (r"gemma-?3", "gemma3"),
    (r"gemma-?2", "gemma2"),
    (r"smollm-?3", "smollm3"),
    (r"olmo-?3", "olmo3"),
    (r"olmo-?2", "olmo2"),
    (r"phi-?[34]", "phi3"),
    (r"mixtral", "mixtral"),
    (r"granite", "granite"),
    (r"mistral", "mistral"),
    (r"(tiny|code)?llama|vicuna|smollm2?", "llama"),
)
# Known types that differ from the families above although their names are similar: never guessed.
LOOKALIKES = frozenset(
    [
        "gemma3n",
        "gemma3n_text",
        "mistral_large4",
        "mllama",
        "phi4_multimodal",
        "phi4mm",
        "qwen",
    ]
)


def from_hf(config: Mapping[str, Any], name: str = "") -> ModelConfig:
    """Read a config.json; `name` is what the model is called, for files that do not say what they are."""
    refuse_drafter(config)
    kind = model_type(config)
    if kind in FAMILIES:
        return read_hf(config, FAMILIES[kind])
    hinted = hint(config, name) if kind not in LOOKALIKES else ""
    if not hinted:
        raise unknown(kind, "config.json")
    said = f"its model_type {kind!r} is unknown" if kind else "it has no model_type"
    return replace(read_hf(config, FAMILIES[hinted]), guess=f"read as {hinted}, because {said} and its name says so")


def from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, HostTensor]) -> ModelConfig:
    """Read the metadata of a GGUF."""
    kind = metadata.get("general.architecture")
    family = family_of_gguf(kind)
    if family is None:
        raise unknown(str(kind or ""), "the GGUF metadata")
    return read_gguf(metadata, tensors, family)


def model_type(config: Mapping[str, Any]) -> str:
    """The family that a config.json names; for a multimodal model, that of its text model."""
    kind = str(config.get("model_type") or "")
    inner = config.get("text_config")
    is_wrapper = kind in WRAPPERS or (kind == "llava" and tower_type(config) == "pixtral")
    return str(inner.get("model_type") or kind) if is_wrapper and isinstance(inner, Mapping) else kind


def tower_type(config: Mapping[str, Any]) -> Any:
    """The tower that a config.json names."""
    tower = config.get("vision_config")
    return tower.get("model_type") if isinstance(tower, Mapping) else None


def family_of_gguf(architecture: Any) -> Family | None:
    """The family of an architecture; None if it is not known."""
    if not isinstance(architecture, str):
        return None
    return ARCHITECTURES.get(architecture) or FAMILIES.get(architecture)


def family_of(config: ModelConfig) -> Family:
    """The family a config was read for."""
    known = (*FAMILIES.values(), *ARCHITECTURES.values())
    return next(family for family in known if family.name == config.family)


def hint(config: Mapping[str, Any], name: str) -> str:
    names = " ".join(map(str, [name, config.get("_name_or_path", "")])).lower()
    found = (key for pattern, key in NAME_HINTS if re.search(rf"(?<![a-z0-9]){pattern}(?![a-z0-9])", names))
    return next(found, "")


def unknown(kind: str, where: str) -> UnsupportedModel:
    said = f"says the model is a {kind!r}" if kind else "does not say what kind of model it is"
    return UnsupportedModel(
        f"{where[0].upper()}{where[1:]} {said}, which Tahr does not run; it runs {', '.join(FAMILIES)}. "
        "Choose a model of one of these families."
    )
