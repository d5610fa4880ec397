"""The backends this machine can run; TAHR_TEST_BACKENDS narrows them."""

import os
from collections.abc import Sequence

import numpy as np
import pytest

from plain_backend import PlainBackend
from tahr.backends import BACKENDS, open_backend
from tahr.backends.api import Backend, ExpertMLPs, KVStore, LayerShape, Linear, MemoryLayout, Rows, Tensor, Weight
from tahr.backends.cuda.layouts import presence as cuda_presence
from tahr.backends.reference.arithmetic import DenseMatrix
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import ConfigError, UnsupportedModel
from tahr.models.loader.load import Loaded, OpenedModel, load
from tahr.weights.tensor import HostTensor


def has_vulkan() -> bool:
    """Whether there is a graphics card, or TAHR_VULKAN_DEVICE names a device: that one must be there."""
    from tahr.backends.vulkan import presence

    try:
        return "TAHR_VULKAN_DEVICE" in os.environ or presence.choose("") >= 0
    except ConfigError:
        return False


IS_HERE = {"cuda": lambda: not cuda_presence.problem(), "vulkan": has_vulkan}
USABLE = [name for name in BACKENDS if IS_HERE.get(name, lambda: True)()]
NAMES = [n for n in os.environ.get("TAHR_TEST_BACKENDS", ",".join(USABLE)).split(",") if n]
# Tests of ops, plans and families run on a backend of default bodies too.
AND_PLAIN = NAMES if "TAHR_TEST_BACKENDS" in os.environ else [*NAMES, "plain"]
_opened: dict[tuple[str, bool, int], Backend] = {}


# What a backend refuses by name: cases of ops by the begins of their names, cases of families.
REFUSED_OPS = {
    "vulkan": (
        "experts-",
        "routed-",
        "latent-",
        "head-linears-",
        "lora-",
        "read-rows",
        "written-rows",
        "turned-",
        "joined-rows",
    )
}
REFUSED_FAMILIES = {
    "vulkan": {
        *(
            "qwen3_moe",
            "qwen3_moe_mixed",
            "mixtral",
            "granitemoe",
            "granitemoeshared",
            "gpt_oss",
            "glm4_moe",
            "gemma4_moe",
        ),
        *("qwen2_moe", "llama4", "llama4_chunks", "phimoe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4"),
        *("cohere_plus", "stablelm_12b"),
        *("qwen3_next", "qwen3_5", "qwen3_5_moe", "granite4_h", "granite4_h_dense"),
    }
}


def loaded_or_refused(case: str, opened: OpenedModel, name: str) -> Loaded:
    """A family on a backend; one that the backend does not have must be refused in a sentence that names both."""
    if case not in REFUSED_FAMILIES.get(name, ()):
        return load(opened, backend(name))
    with pytest.raises(UnsupportedModel, match=rf"^This model .*the {name} backend does not"):
        load(opened, backend(name))
    pytest.skip(f"{name} refuses some families by name")


def backend(name: str, deterministic: bool = False, number: int = 0) -> Backend:
    """One instance of a kind and a number, so that thread pools are not made again for every test.

    Engines that take turns have backends of different numbers: the tokens sampled last are a backend's.
    """
    kind = name, deterministic and name in ("cuda", "vulkan"), number  # the others always are
    if kind not in _opened:
        n_threads = 2 if name == "cpu" else None
        _opened[kind] = PlainBackend() if name == "plain" else open_backend(name, n_threads, deterministic)
    return _opened[kind]


# What a GPU multiplies from packed codes. Products of scales are rounded to f16 in those with scales of scales.
PACKED = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"}
PACKED_ROUNDED = {"Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}


# Cases of attention whose steps have enough tokens for tiles, in which a GPU may round queries and weights to f16.
TILED = {"attention-prefill-f16", "attention-both-ways-slopes-f16"}


class DenseReference(ReferenceBackend):
    """The oracle of a backend that never rounds f32 rows to int8, and rounds to bf16 the matrices it does not pack."""

    def weight(self, tensor: HostTensor) -> Weight:
        weight = super().weight(tensor)
        if weight.data.int8:
            is_packed = tensor.format.name in PACKED | PACKED_ROUNDED and len(tensor.shape) == 2
            values = weight.data.values if is_packed else round_to_bf16(weight.data.values)
            object.__setattr__(weight, "data", DenseMatrix(values, int8=False))
        return weight


class RoundedReference(ReferenceBackend):
    """The oracle with rows rounded to bf16 before and after products, as any engine does that multiplies in bf16."""

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        y = super().linear(in_bf16(x), linear)
        return y if x.rows is Rows.LOGITS else in_bf16(y)

    def experts(self, x: Tensor, scores: Tensor, mlps: ExpertMLPs) -> Tensor:
        return super().experts(in_bf16(x), scores, mlps)


def in_bf16(x: Tensor) -> Tensor:
    return Tensor(x.width, x.rows, round_to_bf16(np.ascontiguousarray(x.data)))


def tolerance_of(name: str, case: str, stated: float) -> float:
    """How far a backend may be from its oracle in a case named after a format."""
    rounds = {
        "cuda": any(form in case for form in PACKED_ROUNDED),
        "vulkan": case in TILED,
    }
    return max(stated, 1e-3) if rounds.get(name) else stated


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def kv_store(
    be: Backend,
    layers: Sequence[LayerShape],
    n_pages: Sequence[int],
    page_size: int,
    dtype: str,
    groups: Sequence[Sequence[int]] | None = None,
    n_slots: int = 1,
) -> KVStore:
    """A store from plain lists."""
    of_groups = None if groups is None else tuple(map(tuple, groups))
    return be.kv_store(MemoryLayout(tuple(layers), tuple(n_pages), page_size, dtype, of_groups, n_slots))


def oracle(name: str) -> ReferenceBackend:
    """What computes the values that backend must reach."""
    return DenseReference() if name == "cuda" else ReferenceBackend()
