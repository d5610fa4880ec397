"""How a checkpoint is quantised, read from its config.json, and how the parts of a matrix become one."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from tahr.errors import CorruptFile, QuantError
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make
from tahr.weights.packed.awq import awq
from tahr.weights.packed.compressed import int_quantized, pack_quantized
from tahr.weights.packed.fp8 import fp8
from tahr.weights.packed.gptq import gptq
from tahr.weights.packed.parts import Parts
from tahr.weights.packed.ternary import ternary
from tahr.weights.tensor import HostTensor

Join = Callable[[str, Parts], HostTensor]  # makes a matrix of its parts, given its name
# Keys are the parts of names that hold codes, or weights stored in that format.
Scheme: TypeAlias = Mapping[str, Join]

# Parts of matrices by the last word of their names.
PARTS = (
    *("qweight", "qzeros", "scales", "g_idx"),
    *("weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx", "weight_scale", "weight_scale_inv"),
)
# Scales of activations and of cached keys and values, which Tahr finds out for itself.
IGNORED = ("input_scale", "output_scale", "k_scale", "v_scale", "input_zero_point", "output_zero_point")
MOST_GROUP = 1 << 20
COMPRESSED = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")


def scheme_of(quant: Mapping[str, Any]) -> Scheme:
    """The scheme of a `quantization_config`; refused where Tahr has no reader for it."""
    method = quant.get("quant_method", "unknown")
    if not isinstance(method, str) or method not in METHODS:
        raise QuantError(
            f"This checkpoint is quantised with {method!r}, which Tahr does not load; it loads {', '.join(METHODS)}. "
            "Use the unquantised checkpoint or a GGUF of the model."
        )
    return METHODS[method](quant)


def gptq_scheme(quant: Mapping[str, Any]) -> Scheme:
    n_bits = bits_of(quant, (4, 8))
    group_size = group_of(quant)
    layout = quant.get("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise refused("GPTQ", f"in the layout {layout!r}", "gptq or gptq_v2")
    return {"qweight": partial(gptq, n_bits=n_bits, group_size=group_size, zero_offset=int(layout == "gptq"))}


def awq_scheme(quant: Mapping[str, Any]) -> Scheme:
    bits_of(quant, (4,))
    layout = quant.get("version", "gemm")
    if not isinstance(layout, str) or layout.lower() != "gemm":
        raise refused("AWQ", f"in the layout {layout!r}", "gemm")
    return {"qweight": partial(awq, group_size=group_of(quant))}


def fp8_scheme(quant: Mapping[str, Any]) -> Scheme:
    block = block_of(quant.get("weight_block_size"))
    return {"F8_E4M3": partial(fp8, block=block)}


def bitnet_scheme(quant: Mapping[str, Any]) -> Scheme:
    mode = quant.get("quantization_mode", "offline")
    linear = quant.get("linear_class", "bitlinear")
    if mode != "offline" or linear not in ("bitlinear", "autobitlinear"):
        raise refused(
            "BitNet", f"by {linear!r} in the mode {mode!r}", "bitlinear and autobitlinear in the mode offline"
        )
    if quant.get("use_rms_norm"):
        raise refused("BitNet", "with norms in its linears", "linears without norms")
    return {"U8": partial(ternary, divides=linear == "bitlinear")}


def compressed_scheme(quant: Mapping[str, Any]) -> Scheme:
    layout = quant.get("format", "dense")
    if layout not in COMPRESSED:
        raise refused("compressed-tensors", f"in the format {layout!r}", ", ".join(COMPRESSED))
    sparsity = quant.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise refused("compressed-tensors", f"with {sparsity.get('format')!r} sparsity", "dense matrices")
    if quant.get("transform_config"):
        raise refused("compressed-tensors", "with rotations between its layers", "those without")
    groups = quant.get("config_groups")
    weights = [part(group, "weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    blocks = [block_of(found.get("block_structure")) for found in weights if found.get("strategy") == "block"]
    joined: Scheme = {
        "weight_packed": pack_quantized,
        "I8": int_quantized,
        "F8_E4M3": partial(fp8, block=(blocks or [None])[0]),
    }
    return joined


METHODS: dict[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "gptq": gptq_scheme,
    "awq": awq_scheme,
    "fp8": fp8_scheme,
    "fbgemm_fp8": fp8_scheme,
    "bitnet": bitnet_scheme,
    "compressed-tensors": compressed_scheme,
}


def refused(method: str, what: str, known: str) -> QuantError:
    return QuantError(
        f"This checkpoint is quantised with {method} {what}, which Tahr does not load; it loads {known}. "
        "Use another quantised checkpoint, the unquantised one, or a GGUF of the model."
    )


def part(group: Any, name: str) -> Mapping[str, Any]:
    found = group.get(name) if isinstance(group, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def bits_of(quant: Mapping[str, Any], known: tuple[int, ...]) -> int:
    n_bits = quant.get("bits", quant.get("w_bit"))
    if type(n_bits) is not int or n_bits not in known:
        raise refused(str(quant["quant_method"]), f"to {n_bits!r} bits", " or ".join(map(str, known)) + " bits")
    return n_bits


def group_of(quant: Mapping[str, Any]) -> int:
    size = quant.get("group_size", quant.get("q_group_size", -1))
    if type(size) is not int or not (size == -1 or 0 < size <= MOST_GROUP):
        raise CorruptFile(f"config.json has the group size {size!r}: it must be -1 or a number of columns.")
    return size


def block_of(stated: Any) -> tuple[int, int] | None:
    if stated is None:
        return None
    if (
        not isinstance(stated, list)
        or len(stated) != 2
        or not all(type(n) is int and 0 < n <= MOST_GROUP for n in stated)
    ):
        raise CorruptFile(f"config.json has the weight block size {stated!r}: it must be two numbers.")
    return stated[0], stated[1]


def join_parts(tensors: Tensors, scheme: Scheme) -> None:
    """Make one weight of the parts of every quantised matrix; nothing is read before the weight is asked for."""
    parts: dict[str, dict[str, str]] = {}
    for name in list(tensors):
        stem, _, kind = name.rpartition(".")
        if kind in IGNORED:
            tensors.drop(name)
        elif kind in PARTS:
            parts.setdefault(stem, {})[kind] = name
    for stem, found in parts.items():
        weight = f"{stem}.weight"
        if weight in tensors:
            found["weight"] = weight
        tensors.replace(list(found.values()), weight, joined_parts(weight, scheme, found, tensors.made_dense))


def joined_parts(
    weight: str, scheme: Scheme, names: Mapping[str, str], made_dense: set[str]
) -> Callable[[Mapping[str, Make]], HostTensor]:
    """A function that joins the parts of a matrix, given by their names, and says where that made it dense."""

    def make(stored: Mapping[str, Make]) -> HostTensor:
        parts = {kind: stored[name]() for kind, name in names.items()}
        join = next((scheme[kind] for kind in parts if kind in scheme), None)
        if "weight" in parts:
            join = scheme.get(parts["weight"].format.name)
        if join is None:
            raise CorruptFile(
                f"The checkpoint has {', '.join(sorted(names))} of {weight}, which are no parts of a matrix as its "
                "config.json says it is quantised; fetch the model again."
            )
        found = join(weight, parts)
        for tensor in parts.values():
            tensor.forget()
        if found.format.block == 1:
            made_dense.add(weight)
        return found

    return make
