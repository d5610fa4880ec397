"""Parts of a loaded model that only those have which speak: voices, codec, the reader of voices."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tahr.config import EngineConfig
from tahr.errors import ConfigError, CorruptFile, ModelNotFound, UnsupportedModel
from tahr.hub import ModelFiles
from tahr.loading.sound.codec import CODEC, read_codec, speaker_encoder
from tahr.models.config.fields import Fields
from tahr.models.config.record import (
    ModelConfig,
    SpeechConfig,
)
from tahr.models.loader.load import OpenedModel, open_model
from tahr.speech.codec.decoder import CodecDecoder
from tahr.speech.codec.speaker import SpeakerEncoder
from tahr.speech.speaking.tokens import SteeringCodes, TextTokens, VoiceTokens

KINDS = ("custom_voice", "voice_design", "base")
MOST_VOICES = 1000
SMALLEST = "0b6"  # size of models that follow no instructions


@dataclass(frozen=True, slots=True)
class SpeakingParts:
    """Everything that speaking takes besides the engine."""

    tokens: VoiceTokens
    codec: CodecDecoder
    voices: SpeakerEncoder | None  # None: voices have names, or are described
    sampling: Mapping[str, Any]  # fields of generation_config.json


def speaking_parts(source: OpenedModel, config: ModelConfig, directory: Path | None) -> SpeakingParts | None:
    """These parts of a model that speaks; None of all others."""
    if not config.speech:
        return None
    f = Fields(source.config, "config.json")
    tokens = voice_tokens(f, config.speech, config.n_vocab)
    if directory is None or not (directory / CODEC).is_dir():
        raise ModelNotFound(f"The folder {CODEC} of {source.name} is missing, which makes sound of codes: fetch it.")
    return SpeakingParts(
        tokens=tokens,
        codec=read_codec(directory / CODEC, config.speech),
        voices=speaker_encoder(f, source.tensors, config.width) if tokens.kind == "base" else None,
        sampling=source.generation,
    )


def voices_of_files(files: ModelFiles) -> VoiceTokens:
    """The voices of a model that is not loaded."""
    source = open_model(files.weights, files.directory)
    config = source.model_config()
    if not config.speech:
        raise ConfigError(f"{files.name} does not speak, and has no voices: name a model that does, such as qwen3-tts.")
    return voice_tokens(Fields(source.config, "config.json"), config.speech, config.n_vocab)


def refuse_unspoken(source: OpenedModel, config: EngineConfig) -> None:
    """Refuse settings that a model that speaks would ignore."""
    if source.config.get("model_type") != "qwen3_tts":
        return
    for name in ("spec_ngram", "spec_draft", "loras"):
        if getattr(config, name, None) and not (name.startswith("spec") and config.spec_off):
            raise ConfigError(f"{name} is set, which does nothing for a model that speaks: leave it out.")
    if config.virtual_ranks > 1:
        raise ConfigError("virtual_ranks is set, but models that speak run on one device: leave it out.")


def voice_tokens(f: Fields, speech: SpeechConfig, n_vocab: int) -> VoiceTokens:
    inner = f.part("talker_config")
    kind = f.text("tts_model_type")
    if kind not in KINDS:
        raise UnsupportedModel(f"config.json says the model is a {kind[:40]!r}; Tahr runs {', '.join(KINDS)}.")
    names = {"im_start": "im_start", "im_end": "im_end", "pad": "tts_pad", "begin": "tts_bos", "end": "tts_eos"}
    text = {name: f.count(f"{field}_token_id", n_vocab - 1, least=0) for name, field in names.items()}
    steering = {"think": "think", "no_think": "nothink", "think_begin": "think_bos", "think_end": "think_eos"}
    steering |= {"pad": "pad", "begin": "bos"}
    codes = {name: inner.count(f"codec_{field}_id", speech.n_first - 1, least=0) for name, field in steering.items()}
    languages = codes_by_name(inner.part("codec_language_id"), speech)
    speakers = codes_by_name(inner.part("spk_id"), speech)
    return VoiceTokens(
        kind=kind,  # type: ignore[arg-type]
        follows_instructions=kind == "voice_design" or f.text("tts_model_size") != SMALLEST,
        text=TextTokens(**text),
        codes=SteeringCodes(**codes),
        n_codes=speech.n_codes,
        n_sounds=speech.n_sounds,
        no_first=speech.n_first,
        no_other=speech.n_entries,
        speakers=speakers,
        dialects=dialects_of(inner.part("spk_is_dialect"), speakers, languages),
        languages=languages,
    )


def codes_by_name(f: Fields, speech: SpeechConfig) -> dict[str, int]:
    if len(f.values) > MOST_VOICES:
        raise CorruptFile(f"In {f.where} are {len(f.values)} names; fetch the model again.")
    return {str(name).lower(): f.count(name, speech.n_first - 1, least=0) for name in f.values}


def dialects_of(f: Fields, speakers: Mapping[str, int], languages: Mapping[str, int]) -> dict[str, str]:
    """The dialect of each speaker who has one: a language of its own."""
    found = {str(name).lower(): value for name, value in f.values.items() if isinstance(value, str) and value}
    for name, spoken in found.items():
        if name not in speakers or spoken.lower() not in languages:
            raise CorruptFile(f"In {f.where}, {name[:40]} speaks {spoken[:40]!r}, which is no language of the model.")
    return {name: spoken.lower() for name, spoken in found.items()}
