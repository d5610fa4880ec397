"""GGUF files in the shape of Qwen3-0.6B with random weights, for speed comparisons. Needs the package gguf.

usage: benchmarks/qwen3_shape.py DIRECTORY [q8_0] [q4_0] [q4_k_m]

No tokenizer inside: what is timed are made-up tokens.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

HIDDEN, N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM, FFN, N_VOCAB = 1024, 28, 16, 8, 128, 3072, 151936
MATRICES = {
    "attn_q": (N_HEADS * HEAD_DIM, HIDDEN),
    "attn_k": (N_KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (N_KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, N_HEADS * HEAD_DIM),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}
NORMS = {"attn_norm": HIDDEN, "ffn_norm": HIDDEN, "attn_q_norm": HEAD_DIM, "attn_k_norm": HEAD_DIM}
SCALES_AT = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}  # bytes of a block where f16 scales begin


def more_bits(layer: int) -> bool:
    """Whether llama.cpp's K-quant recipes give this layer's sensitive matrices more bits."""
    eighth = N_LAYERS // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def format_of(recipe: str, name: str, layer: int) -> str:
    if recipe != "q4_k_m":
        return recipe.upper()
    return "Q6_K" if name == "token_embd" or (name in ("attn_v", "ffn_down") and more_bits(layer)) else "Q4_K"


def random_blocks(form: str, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Any codes, with scales that make values like a model's."""
    block, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form]]
    blocks = np.frombuffer(rng.bytes(shape[0] * shape[1] // block * n_bytes), np.uint8).reshape(-1, n_bytes).copy()
    for at in SCALES_AT[form]:
        scale = rng.uniform(1e-5, 1e-4, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scale[:, None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write(path: Path, recipe: str) -> None:
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(40960)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("none")
    add_tensors(writer, recipe, np.random.default_rng(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensors(writer: gguf.GGUFWriter, recipe: str, rng: np.random.Generator) -> None:
    def add_matrix(name: str, full_name: str, shape: tuple[int, int], layer: int = 0) -> None:
        form = format_of(recipe, name, layer)
        blocks = random_blocks(form, shape, rng)
        writer.add_tensor(f"{full_name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType[form])

    add_matrix("token_embd", "token_embd", (N_VOCAB, HIDDEN))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(N_LAYERS):
        for name, width in NORMS.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
        for name, shape in MATRICES.items():
            add_matrix(name, f"blk.{layer}.{name}", shape, layer)


def main() -> None:
    """Write the recipes asked for; files that are there already stay."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for recipe in sys.argv[2:] or ["q8_0", "q4_k_m"]:
        path = directory / f"qwen3-0.6b-{recipe}.gguf"
        if not path.exists():
            write(path, recipe)
        print(f"{path}: {path.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
