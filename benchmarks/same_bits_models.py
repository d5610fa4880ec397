"""The models and adapters of `same_bits`: made here from the tests' fixtures, the same numbers on every machine."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
import story_model
from gguf_maker import Gguf, Stored, Typed, safetensors
from model_cases import CASES, Arrays, recorded_shapes, shapes, values
from model_files import ARCHITECTURES, gguf_arrays, gguf_keys, stored_hf

N_VOCAB = story_model.CONFIG["vocab_size"]
VOCABULARY_MATRICES = ("model.embed_tokens.weight", "lm_head.weight")
RANK = 4


def write_story(path: Path) -> None:
    """A trained model of 260 thousand parameters."""
    path.write_bytes(story_model.to_gguf(story_model.arrays()))


def write_draft(path: Path) -> None:
    """The same with matrices rounded to four bits: it guesses right now and then."""
    path.write_bytes(story_model.to_gguf({name: rounded(a) for name, a in story_model.arrays().items()}))


def rounded(matrix: np.ndarray) -> np.ndarray:
    if matrix.ndim == 1:
        return matrix
    scale = np.abs(matrix).max(axis=-1, keepdims=True) / np.float32(7)
    return (np.round(matrix / scale) * scale).astype(np.float32)


def write_random(case: str, changes: dict[str, int], path: Path) -> None:
    """A tiny model of some family with random weights and the story model's vocabulary."""
    config = {**CASES[case], **changes, "vocab_size": N_VOCAB}
    found = recorded_shapes().get(case) or shapes(config)
    wide = {name: (N_VOCAB, *shape[1:]) if name in VOCABULARY_MATRICES else shape for name, shape in found.items()}
    arrays = {name: values(name, shape, config) for name, shape in wide.items()}
    prefix = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]]
    keys = {f"{prefix}.{key}": value for key, value in gguf_keys(config).items()}
    metadata = {"general.architecture": Typed("str", prefix), **keys, **story_model.vocabulary_metadata()}
    tensors = [Stored(n, a.shape[::-1], 0, settled(n, a).tobytes()) for n, a in gguf_arrays(config, arrays).items()]
    path.write_bytes(Gguf(metadata, tensors).to_bytes())


def settled(name: str, values: np.ndarray) -> np.ndarray:
    """The decay of a state comes from NumPy's `exp`, whose last bits depend on the processor: they are cut off."""
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32) if name.endswith("ssm_a") else values


def write_adapter(name: str, folder: Path) -> None:
    """A LoRA of random numbers for every matrix of the story model's layers, as PEFT writes it."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    arrays: Arrays = {}
    for matrix, weights in story_model.arrays().items():
        if "_proj" in matrix:
            n_rows, n_columns = weights.shape
            at = f"base_model.model.{matrix.removesuffix('.weight')}"
            arrays |= factors(name, at, {"lora_A": (RANK, n_columns), "lora_B": (n_rows, RANK)})
    (folder / "adapter_model.safetensors").write_bytes(safetensors(stored_hf(arrays)))


def factors(name: str, at: str, sizes: dict[str, tuple[int, int]]) -> Arrays:
    """Both factors of a matrix; adapters of different names have different numbers."""
    return {
        f"{at}.{side}.weight": values(f"{name}.{at}.{side}", shape, story_model.CONFIG) * np.float32(0.4)
        for side, shape in sizes.items()
    }


FAMILIES: dict[str, tuple[str, dict[str, int]]] = {
    "dense": ("llama", {"head_dim": 32}),  # q8_0 keeps numbers of a head in groups of 32
    "moe": ("mixtral", {}),
    "windows": ("gemma3", {}),
    "state_space": ("granite4_h", {}),
    "delta_net": ("qwen3_next", {}),
}
WRITERS: dict[str, Callable[[Path], None]] = {
    "story.gguf": write_story,
    "draft.gguf": write_draft,
    **{f"{name}.gguf": partial(write_random, *case) for name, case in FAMILIES.items()},
    "sad": partial(write_adapter, "sad"),
    "loud": partial(write_adapter, "loud"),
}


def write_all(folder: Path) -> None:
    for name, write in WRITERS.items():
        write(folder / name)
