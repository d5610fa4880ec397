"""Towers of images on a GPU: images per second beside torch with SDPA, and the first token of a chat about an image.

usage: benchmarks/towers.py [clip] [siglip] [qwen3-vl] [--images=256] [--profile]

Shapes are those of CLIP B/32, SigLIP B/16 and Qwen3-VL-8B, weights are random, in bf16. An encoder is timed alone: its
rows lie on the device; what it takes to bring them there is a line of its own. torch runs the same layers eagerly, in
bf16. An image of 1,024 x 1,024 has 1,024 tokens and two marks; a text of as many tokens is its peer. --profile prints
the kernels that take the time.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from gpu_cells import GREEDY, RandomBackend
from silent import Silent
from tahr.backends.api import Weight
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.step.row_steps import TowerBatch
from tahr.generation.pictures import MessageImage, Picture, Pictures
from tahr.images.processors import ImageProcessor
from tahr.images.reading import ImageReader
from tahr.images.sizing import Exactly
from tahr.library.inputs.image_inputs import whole_image
from tahr.library.inputs.prompt_images import PromptImages
from tahr.loading.builder import build_engine
from tahr.models.loader.load import Loaded, OpenedModel, load
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

N_RUNS = 7
N_KERNELS = 12  # printed by --profile
SIDE = 1024
PLACEHOLDER, BEGIN, END, N_TEXT_IDS = 151655, 151652, 151653, 151000
Sizes = dict[str, tuple[int, ...]]


class RandomTowers(RandomBackend):
    """One that keeps matrices in f32 where the loader made them so."""

    def weight(self, tensor: HostTensor) -> Weight:
        if tensor.format.name != "F32":
            return super().weight(tensor)
        values = torch.empty(tensor.shape, dtype=torch.float32, device=self.device).normal_(0, 0.02)
        n_rows, n_cols = tensor.shape
        return Weight(tensor.name, "F32", "dense f32", n_rows, n_cols, 4 * values.numel(), values)


# ---- checkpoints without numbers ------------------------------------------------------------------------------------


def host_tensor(name: str, shape: tuple[int, ...]) -> HostTensor:
    """A small one of ones, a large one without memory: one byte seen everywhere."""
    if len(shape) < 2:
        values = np.ones(shape, np.float32)
        return HostTensor(name, FORMATS["F32"], shape, values.reshape(-1).view(np.uint8))
    return HostTensor(name, FORMATS["BF16"], shape, np.broadcast_to(np.zeros(1, np.uint8), 2 * prod(shape)))


def with_biases(matrices: Sizes) -> Sizes:
    return matrices | {name.replace(".weight", ".bias"): shape[:1] for name, shape in matrices.items()}


def norms(*names: str, width: int) -> Sizes:
    return {f"{name}.{part}": (width,) for name in names for part in ("weight", "bias")}


def vit_layers(place: str, n: int, width: int, ffn: int) -> Sizes:
    """Layers of CLIP and SigLIP, of text or image."""
    made: Sizes = {}
    for i in range(n):
        at = f"{place}.encoder.layers.{i}"
        heads = {f"{at}.self_attn.{side}_proj.weight": (width, width) for side in ("q", "k", "v", "out")}
        mlp = {f"{at}.mlp.fc1.weight": (ffn, width), f"{at}.mlp.fc2.weight": (width, ffn)}
        made |= with_biases(heads | mlp) | norms(f"{at}.layer_norm1", f"{at}.layer_norm2", width=width)
    return made


TEXT_WIDTH = 64
TEXT = {"hidden_size": TEXT_WIDTH, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
        "vocab_size": 64, "max_position_embeddings": 16, "layer_norm_eps": 1e-5}  # fmt: skip
LAYERS = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
          "image_size": 224}  # fmt: skip


def text_side() -> Sizes:
    return {
        "text_model.embeddings.token_embedding.weight": (64, TEXT_WIDTH),
        "text_model.embeddings.position_embedding.weight": (16, TEXT_WIDTH),
        **vit_layers("text_model", 1, TEXT_WIDTH, 64),
        **norms("text_model.final_layer_norm", width=TEXT_WIDTH),
    }


def clip() -> tuple[dict[str, object], Sizes]:
    width = 768
    config = {
        "model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 512,
        "text_config": {**TEXT, "hidden_act": "quick_gelu", "eos_token_id": 2},
        "vision_config": {**LAYERS, "patch_size": 32, "hidden_act": "quick_gelu"},
    }  # fmt: skip
    place = "vision_model"
    return config, {
        **text_side(),
        "text_projection.weight": (512, TEXT_WIDTH),
        "visual_projection.weight": (512, width),
        f"{place}.embeddings.patch_embedding.weight": (width, 3, 32, 32),
        f"{place}.embeddings.class_embedding": (width,),
        f"{place}.embeddings.position_embedding.weight": (50, width),
        **vit_layers(place, 12, width, 3072),
        **norms(f"{place}.pre_layrnorm", f"{place}.post_layernorm", width=width),
    }


def siglip() -> tuple[dict[str, object], Sizes]:
    width = 768
    config = {
        "model_type": "siglip", "architectures": ["SiglipModel"],
        "text_config": {**TEXT, "projection_size": width, "pad_token_id": 1},
        "vision_config": {**LAYERS, "patch_size": 16},
    }  # fmt: skip
    place = "vision_model"
    head = f"{place}.head"
    return config, {
        **text_side(),
        **with_biases({"text_model.head.weight": (width, TEXT_WIDTH)}),
        **with_biases({f"{place}.embeddings.patch_embedding.weight": (width, 3, 16, 16)}),
        f"{place}.embeddings.position_embedding.weight": (196, width),
        **vit_layers(place, 12, width, 3072),
        **norms(f"{place}.post_layernorm", f"{head}.layernorm", width=width),
        **with_biases({f"{head}.mlp.fc1.weight": (3072, width), f"{head}.mlp.fc2.weight": (width, 3072)}),
        **with_biases({f"{head}.attention.out_proj.weight": (width, width)}),
        f"{head}.attention.in_proj_weight": (3 * width, width),
        f"{head}.attention.in_proj_bias": (3 * width,),
        f"{head}.probe": (1, 1, width),
    }


def qwen3_vl(n_layers: int = 36) -> tuple[dict[str, object], Sizes]:
    width, ffn, wide, n_vision = 4096, 12288, 1152, 27
    config = {
        "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "tie_word_embeddings": False,
        "image_token_id": PLACEHOLDER, "vision_start_token_id": BEGIN, "vision_end_token_id": END,
        "text_config": {
            "model_type": "qwen3_vl_text", "hidden_size": width, "intermediate_size": ffn, "vocab_size": 151936,
            "num_hidden_layers": n_layers, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 1 << 18, "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20],
                                "mrope_interleaved": True},
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision", "depth": n_vision, "hidden_size": wide, "num_heads": 16,
            "intermediate_size": 4304, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "in_channels": 3, "hidden_act": "gelu_pytorch_tanh", "out_hidden_size": width,
            "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
        },
    }  # fmt: skip
    text = "model.language_model"
    made: Sizes = {
        "lm_head.weight": (151936, width),
        f"{text}.embed_tokens.weight": (151936, width),
        f"{text}.norm.weight": (width,),
    }
    for i in range(n_layers):
        at = f"{text}.layers.{i}"
        made |= {
            f"{at}.self_attn.q_proj.weight": (4096, width), f"{at}.self_attn.k_proj.weight": (1024, width),
            f"{at}.self_attn.v_proj.weight": (1024, width), f"{at}.self_attn.o_proj.weight": (width, 4096),
            f"{at}.self_attn.q_norm.weight": (128,), f"{at}.self_attn.k_norm.weight": (128,),
            f"{at}.mlp.gate_proj.weight": (ffn, width), f"{at}.mlp.up_proj.weight": (ffn, width),
            f"{at}.mlp.down_proj.weight": (width, ffn), f"{at}.input_layernorm.weight": (width,),
            f"{at}.post_attention_layernorm.weight": (width,),
        }  # fmt: skip
    place = "model.visual"
    made |= with_biases({f"{place}.patch_embed.proj.weight": (wide, 3, 2, 16, 16)})
    made |= {f"{place}.pos_embed.weight": (2304, wide)}
    for i in range(n_vision):
        at = f"{place}.blocks.{i}"
        made |= with_biases({
            f"{at}.attn.qkv.weight": (3 * wide, wide), f"{at}.attn.proj.weight": (wide, wide),
            f"{at}.mlp.linear_fc1.weight": (4304, wide), f"{at}.mlp.linear_fc2.weight": (wide, 4304),
        }) | norms(f"{at}.norm1", f"{at}.norm2", width=wide)  # fmt: skip
    mergers = {f"{place}.merger": wide, **{f"{place}.deepstack_merger_list.{i}": 4 * wide for i in range(3)}}
    for at, normed in mergers.items():
        matrices = {f"{at}.linear_fc1.weight": (4 * wide, 4 * wide), f"{at}.linear_fc2.weight": (width, 4 * wide)}
        made |= with_biases(matrices) | norms(f"{at}.norm", width=normed)
    return config, made


def loaded(config: dict[str, object], sizes: Sizes) -> tuple[Loaded, RandomTowers]:
    tensors = {name: host_tensor(name, shape) for name, shape in sizes.items()}
    backend = RandomTowers()
    return load(OpenedModel("random", "safetensors", config, tensors, 0, {}), backend), backend


# ---- encoders -------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer as transformers has it, with SDPA."""

    def __init__(self, width: int, ffn: int, n_heads: int, act: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.n_heads = n_heads
        self.act = act
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.sides = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.up = nn.Linear(width, ffn)
        self.down = nn.Linear(ffn, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norms[0](x)
        q, k, v = (side(normed).unflatten(2, (self.n_heads, -1)).transpose(1, 2) for side in self.sides[:3])
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.sides[3](seen)
        return x + self.down(self.act(self.up(self.norms[1](x))))


def torch_images_per_s(
    n_images: int, n_tokens: int, n_pixels: int, act: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Patches to states; heads are left out."""
    patch = nn.Linear(n_pixels, 768)
    model = nn.Sequential(patch, *(Layer(768, 3072, 12, act) for _ in range(12))).to("cuda", torch.bfloat16)
    x = torch.randn(n_images, n_tokens, n_pixels, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        with torch.inference_mode():
            model(x)
        torch.cuda.synchronize()

    return n_images / timed(run)


def timed(run: Callable[[], object]) -> float:
    """Seconds, the median of some; the first are left out."""
    for _ in range(3):
        run()
    found = []
    for _ in range(N_RUNS):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return median(found)


def measure_encoder(name: str, n_images: int) -> None:
    config, sizes = {"clip": clip, "siglip": siglip}[name]()
    model, backend = loaded(config, sizes)
    engine = build_engine(backend, model.decoder, EngineConfig())[0]
    vision = model.config.vision
    facts = engine.tower_facts
    assert vision and facts
    n_at_once = min(n_images, facts.limits.n_tokens // vision.n_positions, facts.limits.n_seqs)
    rng = np.random.default_rng(0)
    one = rng.standard_normal((vision.n_positions, vision.row_width)).astype(np.float32)
    batch = TowerBatch(engine.executor, facts)
    sources = [whole_image(one) for _ in range(n_at_once)]

    def run() -> None:
        batch._part = 0  # rows of a tower in one part stay where they are
        for _ in range(facts.n_parts):
            batch.run_part([None] * n_at_once)

    begin_s = timed(lambda: batch.begin(sources))
    part_s = timed(run)
    act = (lambda x: x * torch.sigmoid(1.702 * x)) if name == "clip" else nn.GELU(approximate="tanh")
    peer = torch_images_per_s(n_images, vision.n_positions, one.shape[1], act)
    ours = n_at_once / part_s
    print(f"{name}: {facts.n_parts} parts, {n_at_once} images a step: {ours:,.0f} images/s", flush=True)
    profile(run)
    print(f"  torch {peer:,.0f} (batch {n_images}), {ours / peer:.2f}x; rows to the device: {begin_s * 1e3:.1f} ms")


# ---- chats ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What a reader of images asks of a text model."""

    has_axes: bool = True
    line_end: bytes = b""


class OneImage:
    """A reader that knows one image."""

    placeholder = PLACEHOLDER
    reworded: ClassVar[dict[str, str]] = {}
    has_axes = True

    def __init__(self, picture: Picture):
        self.picture = picture

    def read(self, sent: MessageImage) -> Picture:
        return self.picture


def first_token_s(engine: Engine, tokens: list[int], rows: PromptRows = NO_ROWS) -> float:
    begin = time.perf_counter()
    engine.submit(ResolvedRequest(tokens, replace(GREEDY, max_tokens=1), Silent, rows=rows))
    while engine.busy:
        engine.step()
    return time.perf_counter() - begin


def measure_chat() -> None:
    config, sizes = qwen3_vl()
    model, backend = loaded(config, sizes)
    options = EngineConfig(context_size=8192, max_batch_size=16, kv_bytes=16 << 30)
    engine = build_engine(backend, model.decoder, options)[0]
    vision = model.config.chat_vision
    assert vision and engine.tower_facts
    blank = np.zeros((256, 3), np.float32)
    processor = ImageProcessor(Exactly(1, 1), 3, None, blank, vision.patch_size, merge=vision.merge)
    reader = PromptImages.of(ImageReader.of(processor), vision, Facts(), lambda text: [])
    rng = np.random.default_rng(1)
    pixels = rng.standard_normal((SIDE, SIDE, 3)).astype(np.float32)
    patches = processor.patches(pixels)

    def prompt(seed: int) -> tuple[list[int], PromptRows]:
        picture = reader.of_image(patches, f"image {seed}".encode())
        tokens = [*rng.integers(0, N_TEXT_IDS, 16).tolist(), BEGIN, PLACEHOLDER, END]
        return Pictures(OneImage(picture)).placed(tokens, [MessageImage(0, "image")])

    n = len(prompt(0)[0])
    images = [first_token_s(engine, *prompt(i)) for i in range(N_RUNS + 3)][3:]
    texts = [first_token_s(engine, rng.integers(0, N_TEXT_IDS, n).tolist()) for _ in range(N_RUNS + 3)][3:]
    same_image, same_text = prompt(99), rng.integers(0, N_TEXT_IDS, n).tolist()
    again = [first_token_s(engine, *same_image) for _ in range(N_RUNS + 3)][3:]
    text_again = [first_token_s(engine, same_text) for _ in range(N_RUNS + 3)][3:]
    ours, text, cached, text_cached = (median(each) * 1e3 for each in (images, texts, again, text_again))
    begin_s = timed(lambda: prompt(7))
    parts = engine.tower_facts.n_parts
    print(f"qwen3-vl: {n} tokens, tower in {parts} parts", flush=True)
    print(f"  first token behind an image {ours:.1f} ms, behind text {text:.1f} ms: {ours - text:+.1f} ms")
    print(f"  the same again {cached:.1f} ms, a cached text {text_cached:.1f} ms: {cached / text_cached:.2f}x")
    print(f"  patches to rows of a prompt (not counted): {begin_s * 1e3:.1f} ms", flush=True)
    new, old = prompt(123), same_image
    for name, (tokens, rows) in {"a new image": new, "the same": old, "a text": (same_text, NO_ROWS)}.items():
        print(f"  steps of {name}: {steps_ms(engine, tokens, rows)} ms", flush=True)
    for tokens, rows in (prompt(124), old):
        profile(lambda tokens=tokens, rows=rows: first_token_s(engine, tokens, rows))


def steps_ms(engine: Engine, tokens: list[int], rows: PromptRows) -> str:
    """Where the time of a prompt goes, step by step."""
    engine.submit(ResolvedRequest(tokens, replace(GREEDY, max_tokens=1), Silent, rows=rows))
    found = []
    while engine.busy:
        begin = time.perf_counter()
        engine.step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) * 1e3)
    return " ".join(f"{each:.1f}" for each in found)


def profile(run: Callable[[], object]) -> None:
    """Print the kernels of one run that take the most time, if that was asked for."""
    if "--profile" not in sys.argv:
        return
    with torch.profiler.profile() as seen:
        run()
        torch.cuda.synchronize()
    events = sorted(seen.key_averages(), key=lambda each: -each.self_device_time_total)
    for each in events[:N_KERNELS]:
        print(f"    {each.self_device_time_total / 1e3:8.2f} ms {each.count:5} x {each.key[:90]}", flush=True)


def main(names: Sequence[str]) -> None:
    n_images = next((int(name.partition("=")[2]) for name in names if name.startswith("--images=")), 256)
    chosen = [name for name in names if not name.startswith("--")] or ["clip", "siglip", "qwen3-vl"]
    with torch.inference_mode():
        for name in chosen:
            if name == "qwen3-vl":
                measure_chat()
            else:
                measure_encoder(name, n_images)


if __name__ == "__main__":
    main(sys.argv[1:])
