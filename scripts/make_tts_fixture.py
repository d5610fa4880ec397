"""Write the fixtures of Qwen3-TTS: a tiny model with random weights, and what the released code makes with it.

    python -m venv venv
    venv/bin/pip install torch==2.13.0 transformers==4.57.3 'huggingface_hub<1' 'tokenizers<0.23' librosa
    venv/bin/pip install --no-deps qwen-tts==0.1.1
    venv/bin/python scripts/make_tts_fixture.py tests/fixtures/qwen3_tts

Every parameter is random: codebooks, layer scales and Snake's start as constants, which would hide faults.
"""

import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoProcessor  # noqa: F401 (imported before modules are replaced)

ABSENT = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime", "gradio")
IDS = {
    "im_start_token_id": 290,
    "im_end_token_id": 291,
    "tts_pad_token_id": 292,
    "tts_bos_token_id": 293,
    "tts_eos_token_id": 294,
}
N_CODES = 4


def replace_absent_modules() -> None:
    """Stand-ins for modules that the 25 Hz codec and the demonstration need."""

    def nothing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **more: None

    for name in ABSENT:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__version__ = "0"
        module.__getattr__ = nothing
        module.__path__ = []
        sys.modules[name] = module
        outer, _, inner = name.rpartition(".")
        if outer:
            setattr(sys.modules[outer], inner, module)


def talker_fields() -> dict[str, Any]:
    predictor = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_code_groups": N_CODES,
        "max_position_embeddings": 64,
    }
    return {
        "code_predictor_config": predictor,
        "vocab_size": 1088,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_code_groups": N_CODES,
        "text_hidden_size": 48,
        "text_vocab_size": 300,
        "codec_eos_token_id": 70,
        "codec_think_id": 71,
        "codec_nothink_id": 72,
        "codec_think_bos_id": 73,
        "codec_think_eos_id": 74,
        "codec_pad_id": 75,
        "codec_bos_id": 76,
        "spk_id": {"ryan": 80, "dylan": 81},
        "spk_is_dialect": {"ryan": False, "dylan": "beijing_dialect"},
        "codec_language_id": {"english": 90, "chinese": 91, "beijing_dialect": 92},
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "interleaved": True},
        "max_position_embeddings": 512,
        "pad_token_id": 0,
    }


SPEAKER = {
    "enc_dim": 64,
    "enc_channels": [16, 16, 16, 16, 48],
    "enc_attention_channels": 8,
    "enc_se_channels": 8,
    "enc_res2net_scale": 4,
}
ENCODER = {
    "hidden_size": 16,
    "num_filters": 2,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 16,
    "codebook_size": 8,
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
    "upsampling_ratios": [8, 6, 5, 4],
    "num_quantizers": 4,
    "upsample_groups": 16,
}
DECODER = {
    "codebook_size": 64,
    "codebook_dim": 32,
    "hidden_size": 32,
    "latent_dim": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_quantizers": N_CODES,
    "decoder_dim": 32,
    "sliding_window": 8,
}


def randomise(model: torch.nn.Module) -> None:
    """Random values for every parameter, as BF16 has them."""
    for name, values in model.named_parameters():
        around = 1.0 if ("norm" in name and name.endswith("weight")) or name.endswith("cluster_usage") else 0.0
        fan_in = values[0].numel() if values.dim() > 1 else 16
        spread = 0.3 if values.dim() < 2 else 1.2 / fan_in**0.5
        if "embedding" in name:
            spread = 1.0  # so that texts differ
        if name.endswith(("conv1.conv.weight", "conv2.conv.weight")):
            spread *= 0.3  # so that waves stay within +-1
        with torch.no_grad():
            values.copy_((around + spread * torch.randn(values.shape)).to(torch.bfloat16))


def save(model: torch.nn.Module, path: Path, left_out: tuple[str, ...] = ()) -> None:
    state = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    save_file({name: value.contiguous() for name, value in state.items() if not name.startswith(left_out)}, path)


def main(folder: Path) -> None:
    replace_absent_modules()
    from qwen_tts.core.models import Qwen3TTSConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model

    torch.manual_seed(0)
    fields = dict(speaker_encoder_config=SPEAKER, tts_model_type="base", tts_model_size="0b6", **IDS)
    fields |= {"tokenizer_type": "qwen3_tts_tokenizer_12hz", "talker_config": talker_fields()}
    model = Qwen3TTSForConditionalGeneration._from_config(Qwen3TTSConfig(**fields), attn_implementation="eager").eval()
    randomise(model)
    config = Qwen3TTSTokenizerV2Config(encoder_config=ENCODER, decoder_config=DECODER, encoder_valid_num_quantizers=4)
    codec = Qwen3TTSTokenizerV2Model._from_config(config, attn_implementation="eager").eval()
    randomise(codec)
    with torch.no_grad():
        codec.decoder.decoder[-1].conv.weight *= 2**-5
    (folder / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    save(model, folder / "model.safetensors")
    save(codec, folder / "speech_tokenizer" / "model.safetensors", ("encoder.",))
    model_fields = {"model_type": "qwen3_tts", "architectures": ["Qwen3TTSForConditionalGeneration"], **fields}
    codec_fields = {"model_type": "qwen3_tts_tokenizer_12hz", "decoder_config": {**DECODER, "rope_theta": 10000}}
    codec_fields |= {"upsample": 1920, "output_sample_rate": 24000, "decode_upsample_rate": 1920}
    (folder / "config.json").write_text(json.dumps(model_fields, indent=1) + "\n")
    (folder / "speech_tokenizer" / "config.json").write_text(json.dumps(codec_fields, indent=1) + "\n")
    np.savez_compressed(folder / "expected.npz", **expected(model, codec))


def expected(model: Any, codec: Any) -> dict[str, np.ndarray]:
    """What both make of a few inputs."""
    torch.manual_seed(1)
    found: dict[str, np.ndarray] = {}
    words = torch.randint(0, 280, (8,)).tolist()
    text = torch.tensor([[290, 281, 282, *words, 291, 282, 290, 281, 282]])
    instruct = torch.tensor([[290, 283, 282, 17, 41, 291, 282]])
    found |= {"text": text[0].numpy(), "instruct": instruct[0].numpy()}
    ways = {
        "named": {"languages": ["english"], "speakers": ["ryan"], "non_streaming_mode": True},
        "dialect": {"languages": ["auto"], "speakers": ["dylan"], "non_streaming_mode": True},
        "designed": {"languages": ["auto"], "speakers": [None], "instruct_ids": [instruct], "non_streaming_mode": True},
        "streamed": {"languages": ["auto"], "speakers": ["ryan"], "non_streaming_mode": False},
    }
    vector = torch.randn(64)
    found["vector"] = vector.numpy()
    clone = {"ref_spk_embedding": [vector], "x_vector_only_mode": [True], "icl_mode": [False], "ref_code": None}
    ways["cloned"] = {"languages": ["english"], "voice_clone_prompt": clone, "non_streaming_mode": False}
    codes = torch.randint(0, 64, (6, N_CODES))
    found["reference_codes"] = codes.numpy()
    said = torch.randint(0, 280, (1, 12))
    found["reference_text"] = said[0].numpy()
    both = {"ref_spk_embedding": [vector], "x_vector_only_mode": [False], "icl_mode": [True], "ref_code": [codes]}
    ways["continued"] = {
        "languages": ["english"],
        "voice_clone_prompt": both,
        "ref_ids": [said],
        "non_streaming_mode": False,
    }
    with torch.no_grad():
        for name, more in ways.items():
            codes_of, _ = model.generate(
                input_ids=[text], do_sample=False, subtalker_dosample=False, max_new_tokens=14, **more
            )
            found[f"codes_{name}"] = codes_of[0].numpy()
        frames = torch.randint(0, 64, (1, 23, N_CODES))
        found["frames"] = frames[0].numpy()
        found["wave"] = codec.decode(frames, return_dict=True).audio_values[0].numpy()
        sound = torch.randn(9000).mul(0.2).clamp(-1, 1).numpy()
        found["sound"] = sound.astype(np.float16)
        found["speaker"] = model.extract_speaker_embedding(found["sound"].astype(np.float32), 24000).numpy()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
