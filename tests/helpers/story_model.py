"""A tiny llama of our own that has learned a page of stories, for machines without the larger folder of test data.

`scripts/train_story_model.py` trained it. The fixture holds every matrix as int8 rows with one scale each; here they
become the same f32 numbers on every machine, written as a Hugging Face folder and as a GGUF.
"""

import json
from pathlib import Path

import numpy as np

from gguf_maker import Gguf, Stored, Typed, safetensors
from model_cases import Arrays, Config
from model_files import gguf_arrays, gguf_keys, stored_hf

FIXTURE = Path(__file__).parents[1] / "fixtures" / "story_model"
NAME = "story-model"
CONFIG: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
    "attention_bias": False,
    "mlp_bias": False,
}
SPECIAL = ["<unk>", "<s>", "</s>"]
UNKNOWN, CONTROL, NORMAL, BYTE = 2, 3, 1, 6


def arrays() -> Arrays:
    """The weights as f32."""
    with np.load(FIXTURE / "weights.npz") as stored:
        names = [name.removesuffix(":rows") for name in stored.files if name.endswith(":rows")]
        return {name: stored[f"{name}:rows"].astype(np.float32) * stored[f"{name}:scales"][..., None] for name in names}


def pieces() -> list[str]:
    """The vocabulary: special tokens, the bytes, then pieces in the order in which they were learned."""
    learned: list[str] = json.loads((FIXTURE / "pieces.json").read_text(encoding="utf-8"))
    return [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *learned]


def vocabulary_metadata() -> dict[str, Typed]:
    """The vocabulary as a SentencePiece model in a GGUF: the earlier a piece was learned, the higher its score."""
    names = pieces()
    first = len(SPECIAL) + 256
    scores = [0.0] * first + [-float(i) for i in range(len(names) - first)]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(names) - first)]
    return {
        "tokenizer.ggml.model": Typed("str", "llama"),
        "tokenizer.ggml.pre": Typed("str", "default"),
        "tokenizer.ggml.tokens": Typed("[str]", names),
        "tokenizer.ggml.scores": Typed("[f32]", scores),
        "tokenizer.ggml.token_type": Typed("[i32]", kinds),
        "tokenizer.ggml.bos_token_id": Typed("u32", 1),
        "tokenizer.ggml.eos_token_id": Typed("u32", 2),
        "tokenizer.ggml.unknown_token_id": Typed("u32", 0),
        "tokenizer.ggml.add_bos_token": Typed("bool", True),
        "tokenizer.ggml.add_eos_token": Typed("bool", False),
    }


def to_gguf(weights: Arrays, chat_template: str | None = None) -> bytes:
    """The whole model as one GGUF in f32."""
    metadata = {
        "general.architecture": Typed("str", "llama"),
        "general.name": Typed("str", NAME),
        "general.file_type": Typed("u32", 0),
        "llama.rope.dimension_count": Typed("u32", 8),
        "llama.vocab_size": Typed("u32", CONFIG["vocab_size"]),
        **{f"llama.{key}": value for key, value in gguf_keys(CONFIG).items()},
        **vocabulary_metadata(),
    }
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = Typed("str", chat_template)
    tensors = gguf_arrays(CONFIG, weights)
    return Gguf(metadata, [Stored(n, a.shape[::-1], 0, a.tobytes()) for n, a in tensors.items()]).to_bytes()


def write(folder: Path) -> Path:
    """Write `folder/story-model-f32.gguf` and `folder/hf/`; the path of the first."""
    weights = arrays()
    (folder / "hf").mkdir(parents=True, exist_ok=True)
    (folder / "hf" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "hf" / "model.safetensors").write_bytes(safetensors(stored_hf(weights), {"format": "pt"}))
    path = folder / f"{NAME}-f32.gguf"
    path.write_bytes(to_gguf(weights))
    return path
