"""Parts of a loaded model that only those have which speak: voices, codec, the reader of voices."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tahr.config import EngineConfig
from tahr.errors import ConfigError, CorruptFile, ModelNotFound, UnsupportedModel
from tahr.hub import ModelFiles
from tahr.models.config.fields import Fields
from tahr.models.config.record import (
    MOST_FFN,
    MOST_HEAD_DIM,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_VOCAB,
    MOST_WIDTH,
    ModelConfig,
    SpeechConfig,
)
from tahr.models.loader.load import OpenedModel, open_model, read_object
from tahr.speech.codec.decoder import CodecDecoder
from tahr.speech.codec.sizes import CodecSizes, LayerSizes
from tahr.speech.codec.speaker import SpeakerEncoder, SpeakerSizes
from tahr.speech.codec.tensors import Floats, Parts
from tahr.speech.speaking.tokens import SteeringCodes, TextTokens, VoiceTokens
from tahr.weights import HostTensor, open_safetensors

CODEC = "speech_tokenizer"
CODEC_TYPE = "qwen3_tts_tokenizer_12hz"
KINDS = ("custom_voice", "voice_design", "base")
MOST_VOICES = 1000
MOST_FACTOR = 64
RATE = 24_000
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


# ---- codec ------------------------------------------------------------------------------------------------------


def read_codec(folder: Path, speech: SpeechConfig) -> CodecDecoder:
    f = Fields(read_object(folder / "config.json", needed=True), f"{CODEC}/config.json")
    kind = f.text("model_type")
    if kind != CODEC_TYPE:
        raise UnsupportedModel(f"The codec is a {kind[:60]!r}; Tahr has {CODEC_TYPE}: choose a model of 12 Hz.")
    sizes = codec_sizes(f)
    if sizes.n_codes != speech.n_codes or sizes.n_entries < max(speech.n_entries, speech.n_sounds):
        raise CorruptFile(
            f"The codec reads {sizes.n_codes} codes of {sizes.n_entries} vectors, but the model draws {speech.n_codes} "
            f"of {speech.n_sounds}: they do not belong together. Fetch the model again."
        )
    return CodecDecoder(sizes, Parts(taker(open_safetensors(folder).tensors, CODEC)).at("decoder"))


def codec_sizes(f: Fields) -> CodecSizes:
    inner = f.part("decoder_config")
    width = inner.count("hidden_size", MOST_WIDTH, default=1024)
    n_heads = inner.count("num_attention_heads", MOST_HEADS, default=16)
    if inner.count("num_key_value_heads", MOST_HEADS, default=n_heads) != n_heads or inner.flag("attention_bias"):
        raise UnsupportedModel("The codec's heads share keys or have biases, which no released one does.")
    layers = LayerSizes(
        n_layers=inner.count("num_hidden_layers", MOST_LAYERS, default=8),
        width=width,
        n_heads=n_heads,
        head_dim=2 * inner.count("head_dim", MOST_HEAD_DIM, default=max(2, width // n_heads), least=2) // 2,
        ffn_width=inner.count("intermediate_size", MOST_FFN, default=3072),
        window=inner.count("sliding_window", 1 << 14, default=72),
        rope_theta=inner.number("rope_theta", 1, 1e12, default=10000),
        eps=inner.number("rms_norm_eps", 0, 0.1, default=1e-5),
    )
    n_codes = inner.count("num_quantizers", 64, default=16, least=2)
    sizes = CodecSizes(
        layers=layers,
        n_codes=n_codes,
        n_entries=inner.count("codebook_size", MOST_VOCAB, default=2048),
        code_width=inner.count("codebook_dim", MOST_WIDTH, default=512, least=2),
        latent_width=inner.count("latent_dim", MOST_WIDTH, default=1024),
        width=inner.count("decoder_dim", MOST_WIDTH, default=1536),
        upsampling=factors(inner, "upsampling_ratios", (2, 2)),
        rates=factors(inner, "upsample_rates", (8, 5, 4, 3)),
        sample_rate=f.count("output_sample_rate", RATE, default=RATE, least=RATE),
    )
    stated = f.count("decode_upsample_rate", 1 << 20, default=sizes.n_samples)
    if stated != sizes.n_samples or sizes.width % 2 ** len(sizes.rates) or sizes.layers.head_dim % 2:
        raise CorruptFile(
            f"The codec's rates make {sizes.n_samples} samples of a frame, but it says {stated}, or its channels "
            "cannot be halved so often. Fetch the model again."
        )
    return sizes


def factors(f: Fields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = f.items(name) or list(default)
    if len(found) > 8 or not all(type(each) is int and 1 <= each <= MOST_FACTOR for each in found):
        raise f.wrong(name, f"up to 8 whole numbers from 1 to {MOST_FACTOR}")
    return tuple(found)


# ---- voices -----------------------------------------------------------------------------------------------------


def speaker_encoder(f: Fields, tensors: Mapping[str, HostTensor], width: int) -> SpeakerEncoder:
    inner = f.part("speaker_encoder_config")
    n_out = inner.count("enc_dim", MOST_WIDTH, default=1024)
    channels = whole_numbers(inner, "enc_channels", [512, 512, 512, 512, 1536], MOST_WIDTH)
    sizes = SpeakerSizes(
        n_bins=inner.count("mel_dim", 512, default=128),
        width_out=n_out,
        channels=channels,
        kernels=whole_numbers(inner, "enc_kernel_sizes", [5, 3, 3, 3, 1], 15),
        dilations=whole_numbers(inner, "enc_dilations", [1, 2, 3, 4, 1], 8),
        n_attention=inner.count("enc_attention_channels", MOST_WIDTH, default=128),
        n_squeezed=inner.count("enc_se_channels", MOST_WIDTH, default=128),
        n_split=inner.count("enc_res2net_scale", 64, default=8, least=2),
    )
    if n_out != width or not 3 <= len(channels) == len(sizes.kernels) == len(sizes.dilations):
        raise CorruptFile("The speaker encoder does not belong to the model, or its blocks differ in number.")
    if len({*channels[:-1]}) > 1 or channels[0] % sizes.n_split:
        raise CorruptFile("The channels of the speaker encoder's blocks differ, or do not split evenly.")
    return SpeakerEncoder(sizes, Parts(taker(tensors, "the model")).at("speaker_encoder"))


def whole_numbers(f: Fields, name: str, default: list[int], most: int) -> tuple[int, ...]:
    found = f.items(name) or default
    if len(found) > 16 or not all(type(each) is int and 1 <= each <= most for each in found):
        raise f.wrong(name, f"whole numbers from 1 to {most}")
    return tuple(found)


def taker(tensors: Mapping[str, HostTensor], where: str) -> Any:
    """Takes tensors by name and shape, as floats."""

    def take(name: str, shape: tuple[int, ...]) -> Floats:
        tensor = tensors.get(name)
        if tensor is None:
            raise CorruptFile(f"There is no tensor {name} in {where}; the file is incomplete, fetch the model again.")
        if tensor.shape != shape:
            raise CorruptFile(
                f"Tensor {name} has the shape {list(tensor.shape)}, but its configuration asks for {list(shape)}; "
                "fetch the model again."
            )
        found: Floats = np.asarray(tensor.dense(), np.float32)
        tensor.forget()
        return found

    return take
