"""Qwen3-TTS: what its files say of the talker and the code predictor."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tahr.errors import UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig, SpeechConfig
from tahr.models.family import Family
from tahr.models.files.hf import common
from tahr.models.speaking import talker

MOST_CODES = 64
N_CONTROLS = 1024  # codes at the end of the first table that are no sound
# Values of fields that the files may leave out.
TALKER: Mapping[str, Any] = {
    "vocab_size": 3072,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "num_code_groups": 32,
    "text_hidden_size": 2048,
    "max_position_embeddings": 32768,
    "codec_eos_token_id": 4198,
}
PREDICTOR: Mapping[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}
COMMON = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("intermediate_size", "rms_norm_eps", "max_position_embeddings", "rope_theta", "attention_bias"),
)


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    inner = with_defaults(f.part("talker_config"), TALKER)
    parts = with_defaults(inner.part("code_predictor_config"), PREDICTOR)
    for each in (inner, parts):
        if each.flag("use_sliding_window"):
            raise UnsupportedModel("This Qwen3-TTS has windows, which no released one does; choose another.")
    # Positions along the axes of M-RoPE are all the same here.
    predictor = common(replace(parts, values={**parts.values, "rope_scaling": None}), cfg.family)
    n_first = inner.count("vocab_size", limits.MOST_VOCAB, least=N_CONTROLS + 1)
    n_sounds = n_first - N_CONTROLS
    speech = SpeechConfig(
        predictor=predictor,
        n_codes=inner.count("num_code_groups", MOST_CODES, least=2),
        n_first=n_first,
        n_sounds=n_sounds,
        n_entries=predictor.n_vocab,
        end=inner.count("codec_eos_token_id", n_first - 1, least=n_sounds),
        text_width=inner.count("text_hidden_size", limits.MOST_WIDTH),
    )
    return replace(cfg, speech=speech, n_head_rows=n_sounds + 1, tied=False)


def with_defaults(f: Fields, defaults: Mapping[str, Any]) -> Fields:
    given = {name: value for name, value in f.values.items() if value is not None}
    return replace(f, values={**defaults, **given})


def of_talker(name: str) -> Callable[[Mapping[str, Any]], Any]:
    def found(config: Mapping[str, Any]) -> Any:
        inner = config.get("talker_config")
        return {**TALKER, **inner}.get(name) if isinstance(inner, Mapping) else None

    return found


NAMES = {
    "talker.code_predictor.model": "predictor",
    "talker.code_predictor.lm_head": "predictor.heads",
    "talker.code_predictor.small_to_mtp_projection": "predictor.projection",
    "talker.model": "model",
    "talker.model.text_embedding": "model.embed_tokens",
    "talker.text_projection.linear_fc1": "text.up",
    "talker.text_projection.linear_fc2": "text.down",
    "talker.codec_head": "lm_head",
}
QWEN3_TTS = Family(
    "qwen3_tts",
    talker.build,
    refine_hf=refine_hf,
    hf_fields={**{name: of_talker(name) for name in COMMON}, "vocab_size": of_talker("text_vocab_size")},
    hf_names=NAMES,
    arrange=talker.arrange,
)
