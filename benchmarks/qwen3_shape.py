"""GGUF files in the shapes of Qwen3 with random weights, for speed comparisons. Needs the package gguf.

usage: benchmarks/qwen3_shape.py DIRECTORY [q8_0] [q4_0] [q4_1] [q4_k_m] [--shape 0.6b | 135m | 30b-a3b]

135m has the sizes of SmolLM2-135M. 30b-a3b has the attention and the 128 experts of Qwen3-30B-A3B in 8 of its 48
layers, and a sixth of its vocabulary: the output head takes the same share of a step as in the whole model. No
tokenizer inside: what is timed are made-up tokens.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; `ffn` is the width of an expert where there are any."""

    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    ffn: int
    n_vocab: int
    head_dim: int = 128
    n_experts: int = 0
    n_active: int = 0
    tied: bool = True

    @property
    def architecture(self) -> str:
        return "qwen3moe" if self.n_experts else "qwen3"

    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Of a layer."""
        attention, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        stack, suffix = ((self.n_experts,), "_exps") if self.n_experts else ((), "")
        return {
            "attn_q": (attention, self.width),
            "attn_k": (kv, self.width),
            "attn_v": (kv, self.width),
            "attn_output": (self.width, attention),
            f"ffn_gate{suffix}": (*stack, self.ffn, self.width),
            f"ffn_up{suffix}": (*stack, self.ffn, self.width),
            f"ffn_down{suffix}": (*stack, self.width, self.ffn),
        }

    def norms(self) -> dict[str, int]:
        head = self.head_dim
        return {"attn_norm": self.width, "ffn_norm": self.width, "attn_q_norm": head, "attn_k_norm": head}


SHAPES = {
    "0.6b": Shape(1024, 28, 16, 8, 3072, 151936),
    "135m": Shape(576, 30, 9, 3, 1536, 49152, head_dim=64),
    "30b-a3b": Shape(2048, 8, 32, 4, 768, 25344, n_experts=128, n_active=8, tied=False),
}
SCALES_AT = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q4_K": (0, 2),
    "Q6_K": (208,),
}  # bytes of a block where f16 scales begin


def more_bits(layer: int, n_layers: int) -> bool:
    """Whether llama.cpp's K-quant recipes give this layer's sensitive matrices more bits."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def format_of(recipe: str, name: str, more: bool, tied: bool) -> str:
    if recipe != "q4_k_m":
        return recipe.upper()
    head = name == ("token_embd" if tied else "output")
    return "Q6_K" if head or (more and name in ("attn_v", "ffn_down", "ffn_down_exps")) else "Q4_K"


def random_blocks(form: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Any codes, with scales that make values like a model's."""
    block, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form]]
    size = int(np.prod(shape)) // block * n_bytes
    blocks = np.frombuffer(rng.bytes(size), np.uint8).reshape(-1, n_bytes).copy()
    for at in SCALES_AT[form]:
        scale = rng.uniform(1e-5, 1e-4, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scale[:, None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def write(path: Path, shape: Shape, recipe: str) -> None:
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(40960)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_tokenizer_model("none")
    if shape.n_experts:
        writer.add_expert_count(shape.n_experts)
        writer.add_expert_used_count(shape.n_active)
        writer.add_expert_feed_forward_length(shape.ffn)
    add_tensors(writer, shape, recipe, np.random.default_rng(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensors(writer: gguf.GGUFWriter, shape: Shape, recipe: str, rng: np.random.Generator) -> None:
    def add_matrix(name: str, full_name: str, sizes: tuple[int, ...], layer: int = 0) -> None:
        form = format_of(recipe, name, more_bits(layer, shape.n_layers), shape.tied)
        blocks = random_blocks(form, sizes, rng)
        writer.add_tensor(f"{full_name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType[form])

    for name in ("token_embd",) if shape.tied else ("token_embd", "output"):
        add_matrix(name, name, (shape.n_vocab, shape.width))
    writer.add_tensor("output_norm.weight", np.ones(shape.width, np.float32))
    for layer in range(shape.n_layers):
        for name, width in shape.norms().items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
        for name, sizes in shape.matrices().items():
            add_matrix(name, f"blk.{layer}.{name}", sizes, layer)
        if shape.n_experts:
            router = rng.standard_normal((shape.n_experts, shape.width), np.float32) * 0.02
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)


def main() -> None:
    """Write the recipes asked for; files that are there already stay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("recipes", nargs="*", default=["q8_0", "q4_k_m"])
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    for recipe in args.recipes:
        path = args.directory / f"qwen3-{args.shape}-{recipe}.gguf"
        if not path.exists():
            write(path, SHAPES[args.shape], recipe)
        print(f"{path}: {path.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
