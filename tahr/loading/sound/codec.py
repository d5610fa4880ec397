"""The codec and the speaker encoder of a model that speaks, from its files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import (
    MOST_FFN,
    MOST_HEAD_DIM,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_VOCAB,
    MOST_WIDTH,
    SpeechConfig,
)
from tahr.models.loader.load import read_object
from tahr.speech.codec.decoder import CodecDecoder
from tahr.speech.codec.sizes import CodecSizes, LayerSizes
from tahr.speech.codec.speaker import SpeakerEncoder, SpeakerSizes
from tahr.speech.codec.tensors import Floats, Parts, TensorReader
from tahr.weights import HostTensor, open_safetensors

CODEC = "speech_tokenizer"
CODEC_TYPE = "qwen3_tts_tokenizer_12hz"
MOST_FACTOR = 64
RATE = 24_000


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


def taker(tensors: Mapping[str, HostTensor], where: str) -> TensorReader:
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
