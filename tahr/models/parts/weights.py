"""Tensors by their Hugging Face names, checked against the shape a block expects and handed to a backend."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from tahr.backends.api import Backend, JoinedLinears, Linear, LinearShape, Tensor, Vector, Weight
from tahr.errors import CorruptFile, QuantError
from tahr.models.config.record import ModelConfig
from tahr.models.parts.arrange import Tensors
from tahr.offload.homes import Homes
from tahr.weights.tensor import HostTensor

Progress = Callable[[int, int], None]  # (tensors taken, tensors in all)
Named = Callable[[Linear], Linear]  # a linear, under the name that it has on one of several ranks
Change = Callable[[str, HostTensor], HostTensor]  # a matrix, and its canonical name, before the backend gets it

NO_HOMES: Homes = {}


def as_made(linear: Linear) -> Linear:
    return linear


# Numbers that mean nothing as weights without scales or indices kept elsewhere.
NOT_WEIGHTS = frozenset(["I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"])

GGUF_TOP = {
    "token_embd": "model.embed_tokens",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "token_embd_norm": "model.embed_norm",
    "position_embd": "model.embed_positions",
    "output_norm": "model.norm",
    "output": "lm_head",
    "token_types": "model.embed_types",
    "cls": "classifier.dense",
    "cls.norm": "classifier.norm",
    "cls.output": "classifier.out",
    "dense_2": "dense.0",
    "dense_3": "dense.1",
}
GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_sinks": "self_attn.sinks",
    "exp_probs_b": "mlp.gate.e_score_correction",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
# A text model inside a multimodal checkpoint, as older and newer files name it.
HF_PREFIXES = {
    **{f"{name}.": f"model.{name}." for name in ("layers", "embed_tokens", "norm")},  # saved without a head
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head": "lm_head",
}


def hf_name(name: str, names: Mapping[str, str]) -> str:
    """The canonical name of a safetensors tensor; `names` is what a family calls otherwise, part by part."""
    for prefix, canonical in HF_PREFIXES.items():
        if name.startswith(prefix):
            name = canonical + name.removeprefix(prefix)
            break
    return other_names(tuple(names)).sub(lambda m: names[m[0]], name) if names else name


@cache
def other_names(names: tuple[str, ...]) -> re.Pattern[str]:
    """Finds any of the names between dots, the longest first."""
    found = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<![^.])({found})(?![^.])")


def gguf_name(name: str, layer_names: Mapping[str, str]) -> str:
    """The canonical name of a GGUF tensor; `layer_names` is what a family calls otherwise."""
    stem, _, kind = name.rpartition(".")
    if stem in GGUF_TOP:
        return f"{GGUF_TOP[stem]}.{kind}"
    if (found := re.fullmatch(r"blk\.(\d+)", stem)) and kind in layer_names:
        return f"model.layers.{found[1]}.{layer_names[kind]}"  # an exception: names without a suffix
    if found := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem):
        layer, part = found.groups()
        if canonical := layer_names.get(part) or GGUF_LAYER.get(part):
            return f"model.layers.{layer}.{canonical}.{kind}"
    return name


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm: its gain, and the epsilon that keeps it from dividing by zero. Centred, it is a layer norm, which
    takes the mean away first and may add a bias."""

    gain: Vector
    eps: float
    centred: bool = False
    bias: Vector | None = None

    def apply(self, backend: Backend, x: Tensor) -> Tensor:
        """The normed rows."""
        if self.centred:
            return backend.layer_norm(x, self.gain, self.bias, self.eps)
        return backend.rms_norm(x, self.gain, self.eps)

    def apply_to_sum(self, backend: Backend, x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """(s, normed s) for s = x + scale * y."""
        if self.centred:
            return backend.add_layer_norm(x, y, self.gain, self.bias, self.eps, scale)
        return backend.add_rms_norm(x, y, self.gain, self.eps, scale)


@dataclass(frozen=True, slots=True)
class HeadLayerNorm:
    """A layer norm of every head by itself, with gains of its own."""

    gain: Vector
    eps: float
    n_heads: int

    def apply(self, backend: Backend, x: Tensor) -> Tensor:
        """The rows, normed head by head."""
        return backend.head_layer_norm(x, self.gain, self.eps, self.n_heads)


@dataclass(slots=True)
class LoadCounts:
    """Record of everything handed to the backend so far."""

    names: set[str] = field(default_factory=set)
    n_tensors: Counter[tuple[str, str]] = field(default_factory=Counter)  # keys are stored format and kernel
    n_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    n_vector_bytes: int = 0
    sizes: dict[str, Weight] = field(default_factory=dict)  # keys are canonical names; no data
    linears: dict[str, LinearShape] = field(default_factory=dict)  # targets of adapters, by name

    def add(self, name: str, weight: Weight) -> None:
        """Count a matrix; its data are not kept, because the backend may join it with others."""
        self.sizes[name] = replace(weight, data=None)
        self.n_tensors[weight.format, weight.kernel] += 1
        self.n_bytes[weight.format, weight.kernel] += weight.n_bytes

    @property
    def total_bytes(self) -> int:
        return self.n_bytes.total() + self.n_vector_bytes

    def summary(self) -> list[str]:
        """One line per pair of stored format and kernel."""
        return [
            f"{stored} -> {kernel}: {self.n_tensors[stored, kernel]} tensors, {size / 1e6:.1f} MB"
            for (stored, kernel), size in self.n_bytes.most_common()
        ]


class Weights:
    """The tensors under one prefix. A tensor that is asked for is checked and moves to the backend, once."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, HostTensor],
        backend: Backend,
        progress: Progress | None = None,
        prefix: str = "",
        counts: LoadCounts | None = None,
        change: Change | None = None,
        lora_rows: int = 0,
        homes: Homes = NO_HOMES,
        named: Named = as_made,
    ):
        self.config = config
        self.tensors = tensors
        self.backend = backend
        self.progress = progress
        self.prefix = prefix
        self.counts = LoadCounts() if counts is None else counts
        self.change = change
        self.lora_rows = lora_rows  # adapter rows behind each linear of a layer
        self.homes = homes  # where tensors go that have another place than the backend's usual one
        self.named = named

    def at(self, name: str) -> "Weights":
        """The tensors below `name`."""
        prefix = f"{self.prefix}{name}."
        given = (self.config, self.tensors, self.backend, self.progress)
        return Weights(*given, prefix, self.counts, self.change, self.lora_rows, self.homes, self.named)

    def of(self, config: ModelConfig) -> "Weights":
        """View of these tensors for layers of other numbers, which are not rounded and have no room for adapters."""
        given = (self.tensors, self.backend, self.progress, self.prefix, self.counts)
        return Weights(config, *given, homes=self.homes, named=self.named)

    def numbered(self, config: ModelConfig) -> "Weights":
        """View of these tensors for layers of other numbers, which are rounded like the model's."""
        given = (self.tensors, self.backend, self.progress, self.prefix, self.counts, self.change)
        return Weights(config, *given, homes=self.homes, named=self.named)

    def matrix(self, name: str, n_rows: int, n_cols: int) -> Weight:
        """The matrix `name`."""
        return self.give(name, self.find(name, (n_rows, n_cols)))

    def linear(self, name: str, n_rows: int, n_cols: int, bias: bool = False) -> Linear:
        """The linear `name`."""
        linear = self._linear(name, n_rows, n_cols, bias)
        return self._join([linear]).parts[0] if self._n_kept else linear

    def joined(self, heights: Mapping[str, int], n_cols: int, bias: bool = False) -> JoinedLinears:
        """Linears of the same rows, given how many rows each gives out."""
        return self._join([self._linear(name, n_rows, n_cols, bias) for name, n_rows in heights.items()])

    @property
    def _n_kept(self) -> int:
        """Rows to keep behind a linear: none behind a head, which few adapters change."""
        return self.lora_rows if self.prefix else 0

    def _join(self, linears: Sequence[Linear]) -> JoinedLinears:
        joined = self.backend.join(linears, self._n_kept)
        for part in joined.parts:
            self.counts.linears[part.name] = replace(self.counts.linears[part.name], spare_rows=joined.spare_rows)
        return joined

    def _linear(self, name: str, n_rows: int, n_cols: int, bias: bool) -> Linear:
        weight = self.matrix(f"{name}.weight", n_rows, n_cols)
        linear = Linear(weight, self.vector(f"{name}.bias", n_rows) if bias else None, self.prefix + name)
        linear = self.named(linear)
        self.counts.linears[linear.name] = LinearShape(n_rows, n_cols, weight.kernel)
        return linear

    def stack(self, name: str, n: int, n_rows: int, n_cols: int, bias: bool = False) -> Linear:
        """`n` linears as one: stored so, or one tensor per index."""
        full = f"{name}.weight"
        if self.prefix + full in self.tensors:
            tensor = self.find(full, (n, n_rows, n_cols))
        else:
            parts = [self.find(f"{i}.{full}", (n_rows, n_cols)) for i in range(n)]
            tensor = stacked(self.prefix + full, parts)
        biases = self.find(f"{name}.bias", (n, n_rows)).dense().reshape(-1) if bias else None
        bias_vector = None if biases is None else self.upload(biases)
        return self.named(Linear(self.give(full, tensor), bias_vector, self.prefix + name))

    def vector(self, name: str, width: int) -> Vector:
        """The bias `name`."""
        return self.upload(self.find(name, (width,)).dense())

    def constants(self, values: Sequence[float]) -> Vector:
        """Numbers that follow from the configuration."""
        return self.upload(np.array(values, np.float32))

    def has(self, name: str) -> bool:
        """Whether the files hold `name`."""
        return self.prefix + name in self.tensors

    def norm(self, name: str, width: int | None = None) -> Norm:
        """The norm `name`, as wide as the model unless told."""
        cfg = self.config
        n = width or self.config.width
        gain = self.find(f"{name}.weight", (n,)).dense()
        bias = self.vector(f"{name}.bias", n) if cfg.norm_bias and self.has(f"{name}.bias") else None
        return Norm(self.upload(gain + np.float32(cfg.norm_offset)), cfg.norm_eps, cfg.norm_kind == "layer", bias)

    def head_layer_norm(self, name: str, n_heads: int) -> HeadLayerNorm:
        """The layer norms `name` of heads: stored as one tensor, or each by itself."""
        self.backend.check_head_layer_norm()
        dim = self.config.head_dim
        if self.has(f"{name}.weight"):
            gains = self.find(f"{name}.weight", (n_heads, dim)).dense().reshape(-1)
        else:
            gains = np.concatenate([self.find(f"{name}.{i}.weight", (dim,)).dense() for i in range(n_heads)])
        return HeadLayerNorm(self.upload(gains), self.config.norm_eps, n_heads)

    def pick(self, first: str, second: str) -> tuple[Norm, Norm]:
        """The norms before, or after, the two sublayers of a layer."""
        return self.norm(first), self.norm(second)

    def skip(self, name: str) -> None:
        """Count `name` as used: a copy of something taken elsewhere."""
        self.counts.names.add(self.prefix + name)

    def unused(self) -> list[str]:
        """Tensors that were not asked for, by their names in the file."""
        left = self.tensors.keys() - self.counts.names
        if isinstance(self.tensors, Tensors):
            return sorted(map(self.tensors.file_name, left))
        return sorted(self.tensors[name].name for name in left)

    # ---- parts of the above -----------------------------------------------------------------------------------

    def find(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        full = self.prefix + name
        if full not in self.tensors:
            raise CorruptFile(
                f"The model has no tensor {full}, which a {self.config.family} model of this size needs. "
                "The file is incomplete or its configuration belongs to another model; fetch the model again."
            )
        tensor = with_ones(self.tensors[full], shape)
        check_shape(tensor, shape)
        check_format(tensor)
        self.counts.names.add(full)
        if self.progress:
            self.progress(len(self.counts.names), len(self.tensors))
        return tensor

    def give(self, name: str, tensor: HostTensor) -> Weight:
        changed = self.change(self.prefix + name, tensor) if self.change else tensor
        home = self.homes.get(self.prefix + name)
        weight = self.backend.weight_elsewhere(changed, home) if home else self.backend.weight(changed)
        self.counts.add(self.prefix + name, weight)
        return weight

    def upload(self, values: np.ndarray) -> Vector:
        self.counts.n_vector_bytes += values.nbytes
        return self.backend.vector(values)


def with_ones(tensor: HostTensor, shape: tuple[int, ...]) -> HostTensor:
    """A tensor with the sizes of 1 that come first in `shape`, which programs that quantise GGUF files drop."""
    n_dropped = len(shape) - len(tensor.shape)
    dropped = n_dropped > 0 and shape == (1,) * n_dropped + tensor.shape
    return replace(tensor, shape=shape) if dropped else tensor


def check_shape(tensor: HostTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise CorruptFile(
            f"Tensor {tensor.name} has the shape {list(tensor.shape)}, but the model's configuration asks for "
            f"{list(shape)}. The file is damaged or the two belong to different models; fetch the model again."
        )


def check_format(tensor: HostTensor) -> None:
    if tensor.format.name in NOT_WEIGHTS:
        raise QuantError(
            f"Tensor {tensor.name} is stored as {tensor.format.name}, which Tahr cannot use as a weight. "
            "Use the model's BF16, F16 or F32 checkpoint, or a GGUF of it."
        )


def stacked(name: str, parts: list[HostTensor]) -> HostTensor:
    """Equal matrices as one stack."""
    formats = {part.format for part in parts}
    if len(formats) > 1:
        names = ", ".join(sorted(f.name for f in formats))
        raise QuantError(f"The experts of {name} are stored in different formats ({names}); convert them to one.")
    data = np.concatenate([part.data for part in parts])
    return HostTensor(name, parts[0].format, (len(parts), *parts[0].shape), data)
