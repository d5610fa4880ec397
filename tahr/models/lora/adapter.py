"""An adapter as it was read: factors by linear, checked against the model, named by a digest of its content."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from tahr.backends.api import MAX_RANK, LinearShape, LoraFactors
from tahr.errors import AdapterError
from tahr.models.config.record import ModelConfig
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

KEPT = ("F32", "F16", "BF16")  # formats that backends take as they are; block formats become F32
MOST_SCALE = 1e6
# Families whose adapters are known to be right, from files of either kind on files of either kind.
ADAPTED = frozenset(
    [
        "cohere",
        "cohere2",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma4",
        "glm",
        "glm4",
        "glm4_moe",
        "gpt_oss",
        "granite",
        "granitemoe",
        "granitemoeshared",
        "internlm3",
        "llama",
        "minicpm",
        "ministral",
        "ministral3",
        "mistral",
        "mixtral",
        "olmo2",
        "olmo3",
        "phi",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    ]
)
N_NAMED = 3  # linears named in an error
DIGEST_BYTES = 16
HALF_EXPONENT = {"F16": 0x7C00, "BF16": 0x7F80}  # all of its bits are set in numbers that are not finite


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """The facts about a model that its adapters depend on."""

    name: str
    config: ModelConfig
    linears: Mapping[str, LinearShape]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """Low-rank additions to the linears of a model, by their names."""

    factors: Mapping[str, LoraFactors]
    digest: str
    base: str = ""  # the model it was made for, as its file says
    notes: tuple[str, ...] = ()  # remarks for the user

    @property
    def rank(self) -> int:
        """The largest of its linears."""
        return max(factors.rank for factors in self.factors.values())

    @property
    def n_bytes(self) -> int:
        return sum(factors.n_bytes for factors in self.factors.values())


@dataclass(frozen=True, slots=True)
class RawFactors:
    """The tensors of one linear as a file holds them; one may be missing."""

    a: HostTensor | None
    b: HostTensor | None
    alpha: float
    by_root: bool = False  # scaled by the root of the rank

    def scale(self, rank: int) -> float:
        """The factor on the product; alpha 0 stands for no scaling."""
        return float(self.alpha / (rank**0.5 if self.by_root else rank)) if self.alpha else 1.0


def make_adapter(raw: Mapping[str, RawFactors], target: AdapterTarget, base: str, notes: tuple[str, ...]) -> Adapter:
    """The adapter, if every tensor of it fits the model."""
    if target.config.family not in ADAPTED:
        raise AdapterError(
            f"Tahr does not run adapters of {target.config.family} models yet: merge it into the checkpoint with PEFT."
        )
    if not raw:
        raise AdapterError("The adapter has no tensors: there is nothing to add to the model.")
    refuse_unknown(raw, target)
    factors = {name: checked(name, raw[name], target.linears[name]) for name in sorted(raw)}
    return Adapter(factors, digest_of(factors), base, notes)


def refuse_unknown(raw: Mapping[str, RawFactors], target: AdapterTarget) -> None:
    """Refuse an adapter that changes anything but linears of the model."""
    unknown = [name for name in raw if name not in target.linears]
    if not unknown:
        return
    shown = ", ".join(unknown[:N_NAMED]) + (f" and {len(unknown) - N_NAMED} more" if len(unknown) > N_NAMED else "")
    if any(".experts" in name for name in unknown):
        raise AdapterError(
            f"The adapter changes the experts of a mixture ({shown}), which Tahr does not do: use one that changes "
            "attention and the other linears alone, or merge it into the checkpoint with PEFT."
        )
    if "lm_head" in unknown:
        raise AdapterError(
            "The adapter changes the head, which this model shares with its embedding table, so they cannot be merged: "
            "use the adapter as it is."
        )
    if any(name.endswith("embed_tokens") for name in unknown):
        raise AdapterError(
            "The adapter changes the embedding table, which Tahr does not do: merge it into the checkpoint with PEFT."
        )
    raise AdapterError(
        f"The adapter changes {shown}, but the {target.config.family} model {target.name} has no such linear: it was "
        "made for another model. Use it with its own base model."
    )


def checked(name: str, raw: RawFactors, shape: LinearShape) -> LoraFactors:
    """The factors of one linear, copied out of the file."""
    if raw.a is None or raw.b is None:
        which = "first (lora_A)" if raw.a is None else "second (lora_B)"
        raise AdapterError(f"The adapter lacks the {which} of the two tensors of {name}: fetch it again.")
    check_shapes(name, raw.a, raw.b, shape)
    scale = raw.scale(raw.a.shape[0])
    if not np.isfinite(scale) or abs(scale) > MOST_SCALE:
        raise AdapterError(f"The adapter scales {name} by {scale:g}, which is no useful number: fetch it again.")
    return LoraFactors(taken(raw.a), taken(raw.b), scale)


def check_shapes(name: str, a: HostTensor, b: HostTensor, shape: LinearShape) -> None:
    rank = a.shape[0] if len(a.shape) == 2 else 0
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or not rank:
        raise AdapterError(
            f"The tensors of {name} have the shapes {list(a.shape)} and {list(b.shape)}, which are no two factors of a "
            "matrix: fetch the adapter again."
        )
    if (b.shape[0], a.shape[1]) != (shape.n_rows, shape.n_cols):
        raise AdapterError(
            f"The adapter changes a {b.shape[0]} x {a.shape[1]} matrix in {name}, but the model's is {shape.n_rows} x "
            f"{shape.n_cols}: it was made for another model. Use it with its own base model."
        )
    if rank > MAX_RANK:
        raise AdapterError(f"The adapter has rank {rank} in {name}; {MAX_RANK} is the most: merge it into the model.")


def taken(tensor: HostTensor) -> HostTensor:
    """A copy in memory, in a format that backends take, of finite numbers alone."""
    kept = tensor.format.name in KEPT
    if not kept and (tensor.format.ggml_id is None or tensor.format.name.startswith("I")):
        raise AdapterError(f"Tensor {tensor.name} is stored as {tensor.format.name}, which is no format of an adapter.")
    data = np.array(tensor.data) if kept else tensor.dense().reshape(-1).view(np.uint8)
    copied = HostTensor(tensor.name, tensor.format if kept else FORMATS["F32"], tensor.shape, data)
    if not is_finite(copied):
        raise AdapterError(
            f"Tensor {tensor.name} of the adapter holds numbers that are not finite: it is damaged or its training "
            "failed. Fetch it again, or use another."
        )
    return copied


def is_finite(tensor: HostTensor) -> bool:
    exponent = HALF_EXPONENT.get(tensor.format.name)
    if exponent is None:
        return bool(np.isfinite(tensor.data.view("<f4")).all())
    return not bool(((tensor.data.view("<u2") & exponent) == exponent).any())


def digest_of(factors: Mapping[str, LoraFactors]) -> str:
    """Equal digests mean equal results: names, shapes, formats, scales and every number."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name, each in factors.items():
        for tensor in (each.a, each.b):
            digest.update(f"{name} {tensor.shape} {tensor.format.name} {each.scale!r};".encode())
            digest.update(tensor.data.data)
    return digest.hexdigest()
