"""Adapters made of random numbers, as files of either kind and in memory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tahr.backends.api import LinearShape, LoraBank, LoraFactors, Rows
from tahr.models.lora import Adapter, AdapterTarget
from tahr.models.lora.adapter import RawFactors, make_adapter
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

DTYPES = {"F32": "<f4", "F16": "<f2"}


def host(name: str, values: np.ndarray, form: str = "F32") -> HostTensor:
    """Numbers as a file would hold them."""
    if form == "BF16":
        bits = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
        return HostTensor(name, FORMATS[form], values.shape, bits.reshape(-1).view(np.uint8))
    stored = np.ascontiguousarray(values.astype(DTYPES[form]))
    return HostTensor(name, FORMATS[form], values.shape, stored.reshape(-1).view(np.uint8))


def random_factors(
    shape: LinearShape, rank: int, rng: np.random.Generator, form: str = "F32", scale: float = 1.0
) -> LoraFactors:
    a = rng.standard_normal((rank, shape.n_cols)).astype(np.float32) / shape.n_cols**0.5
    b = rng.standard_normal((shape.n_rows, rank)).astype(np.float32)
    return LoraFactors(host("a", a, form), host("b", b, form), scale)


def random_adapter(
    target: AdapterTarget, seed: int, rank: int = 4, strength: float = 0.3, form: str = "F32"
) -> Adapter:
    """An adapter of all linears of a model but its head."""
    rng = np.random.default_rng(seed)
    raw = {}
    for name, shape in target.linears.items():
        if name != "lm_head":
            made = random_factors(shape, rank, rng, form)
            raw[name] = RawFactors(made.a, made.b, strength * rank)
    return make_adapter(raw, target, "", ())


def fill_rows(bank: LoraBank, rows: Rows, stacks: list[list[tuple[int, float]]]) -> None:
    """Row i meets the adapters of stacks[i], given as (slot, scale): by the definition, one tile per slot."""
    found = bank.rows[rows]
    found.n_tiles[:] = 0
    for k in range(len(found.n_tiles)):
        meeting = sorted((stack[k][0], row, stack[k][1]) for row, stack in enumerate(stacks) if len(stack) > k)
        for at, (slot, row, scale) in enumerate(meeting):
            found.rows[k, at], found.scales[k, at] = row, scale
            n = found.n_tiles[k]
            if n and found.tiles[k, n - 1, 0] == slot and found.tiles[k, n - 1, 2] < 16:
                found.tiles[k, n - 1, 2] += 1
            else:
                found.tiles[k, n] = slot, at, 1
                found.n_tiles[k] += 1
    bank.send()


# ---- files ----------------------------------------------------------------------------------------------------


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray | HostTensor]) -> None:
    hosts = {name: t if isinstance(t, HostTensor) else host(name, t) for name, t in tensors.items()}
    header: dict[str, Any] = {}
    at = 0
    for name, tensor in hosts.items():
        end = at + tensor.n_bytes
        header[name] = {"dtype": tensor.format.name, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.data.tobytes() for t in hosts.values()))


def peft_config(**changes: Any) -> dict[str, Any]:
    """What PEFT writes for a plain adapter."""
    plain: dict[str, Any] = {
        "peft_type": "LORA", "base_model_name_or_path": "", "r": 4, "lora_alpha": 8, "use_rslora": False,
        "use_dora": False, "bias": "none", "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
        "target_modules": "all-linear", "init_lora_weights": True, "fan_in_fan_out": False,
    }  # fmt: skip
    return plain | changes


def peft_tensors(
    linears: Mapping[str, LinearShape], rank: int, seed: int, strength: float = 1.0
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in linears.items():
        made = random_factors(shape, rank, rng)
        tensors[f"base_model.model.{name}.lora_A.weight"] = made.a.dense()
        tensors[f"base_model.model.{name}.lora_B.weight"] = made.b.dense() * np.float32(strength)
    return tensors


def write_peft(folder: Path, tensors: Mapping[str, np.ndarray | HostTensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(**config)))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder
