"""How matrices travel from a file to a CUDA device, and how linears of the same rows become one.

Formats with kernels of their own are packed (see `packed`), floats stay as they are, all others become dense bf16.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

import torch

from tahr.backends.api import JoinedLinears, Linear, Weight
from tahr.backends.cuda.kernels.lora import MAX_TARGETS
from tahr.backends.cuda.kernels.packed import unpacked_matrix
from tahr.backends.cuda.layouts.codes import FORMATS
from tahr.backends.cuda.layouts.fp8 import Fp8Matrix, converts_fp8, fp8_matrix, joined_fp8, stored_fp8, with_copy
from tahr.backends.cuda.layouts.kinds import BLOCK, EIGHT
from tahr.backends.cuda.layouts.packed import CodedMatrix, joined, packed_matrix, rounded_matrix
from tahr.backends.cuda.layouts.words import packed_bytes
from tahr.backends.cuda.ops.spare_rows import with_spare_rows
from tahr.backends.cuda.ops.vectors import SHORT, JoinedMatrix
from tahr.backends.cuda.uploads import uploads
from tahr.errors import LoadError
from tahr.weights.tensor import HostTensor

# Formats kept as they are, and how a NumPy array shows their numbers to torch.
KEPT = {"F32": (torch.float32, "f4"), "F16": (torch.float16, "f2"), "BF16": (torch.bfloat16, "i2")}
CHUNK = 1 << 23  # values that travel at a time


@contextmanager
def refusing_unfit(name: str) -> Iterator[None]:
    """Says in a sentence that a matrix does not fit the card."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"The model needs more memory than the GPU has free: none is left for {name}. Use a smaller model or one "
            "quantised further, end other programs that use the GPU, or use the cpu backend."
        ) from error


def take(tensor: HostTensor, device: torch.device, packs: bool, free_share: float) -> Weight:
    """Move a matrix `[n_rows, n_cols]`, or a stack of such, to the device; packed if it `packs` and can be.

    A packed matrix has a dense copy too, for larger batches, if that leaves `free_share` of the card's memory free.
    """
    if tensor.stored_as == "fp8":
        rounded = fp8_matrix(take_dense(tensor, device).data)
        n_rows, n_cols = rounded.shape
        return Weight(tensor.name, tensor.format.name, "fp8 rows", n_rows, n_cols, rounded.n_bytes, rounded)
    if tensor.format.name == "FP8_128" and packs and len(tensor.shape) == 2 and converts_fp8(device):
        return take_fp8(tensor, device, free_share)
    dense = take_dense(tensor, device) if tensor.stored_as == "q8_0" else None
    packed = rounded_matrix(dense.data) if dense else packed_matrix(tensor, device) if packs else None
    if packed is None:
        return dense or take_dense(tensor, device)
    tensor.forget()
    kernel = f"packed {packed.kind.name}"
    if has_memory(device, packed, free_share):
        packed = replace(packed, dense=unpacked_matrix(packed, packed.dtype))
        kernel = f"{kernel} and dense bf16"
    return Weight(tensor.name, tensor.format.name, kernel, *packed.shape, packed.n_bytes, packed)


def take_fp8(tensor: HostTensor, device: torch.device, free_share: float) -> Weight:
    """A matrix of an fp8 checkpoint, as it is stored."""
    matrix = stored_fp8(tensor, device)
    kernel = "fp8 blocks" if matrix.grouped else "fp8 rows"
    if matrix.grouped and has_memory(device, matrix, free_share):
        matrix = with_copy(matrix)
        kernel = f"{kernel} and dense bf16"
    n_rows, n_cols = matrix.shape
    return Weight(tensor.name, tensor.format.name, kernel, n_rows, n_cols, matrix.n_bytes, matrix)


def taken_bytes(tensor: HostTensor, device: torch.device, packs: bool, free_share: float, n_taken: int) -> int:
    """Bytes that `take` will need for a tensor, told by its shape and format.

    Scales that do not fit a packed form, which makes a matrix dense, and rows of 8-bit floats that share one scale are
    known when they are read: such a matrix takes more, or a little less.
    """
    form = tensor.format.name
    n_values = tensor.n_values
    is_matrix = len(tensor.shape) == 2
    dtype = KEPT[form][0] if form in KEPT else torch.bfloat16
    dense: int = n_values * dtype.itemsize
    if tensor.stored_as == "fp8":
        return n_values + 4 * tensor.shape[0]
    if tensor.stored_as == "q8_0":
        return packed_bytes(n_values, EIGHT) if tensor.shape[-1] % BLOCK == 0 else dense
    if not (packs and is_matrix):
        return dense
    if form == "FP8_128" and converts_fp8(device):
        kept = tensor.n_bytes
    elif form in FORMATS:
        kept = packed_bytes(n_values, FORMATS[form][0])
    else:
        return dense
    copy = n_values * torch.bfloat16.itemsize
    if device.type != "cuda":
        return kept
    free, total = free_and_total(device)
    # The packed matrix itself is there when `has_memory` looks.
    n_left = free - n_taken - kept - copy
    return kept + copy if n_left >= free_share * total else kept


def free_and_total(device: torch.device) -> tuple[int, int]:
    """The memory of a card; what torch holds but does not use is free too."""
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused, total


def has_memory(device: torch.device, matrix: CodedMatrix | Fp8Matrix, free_share: float) -> bool:
    """Whether a dense copy leaves that share of the card free."""
    if device.type != "cuda":
        return False
    free, total = free_and_total(device)
    n_bytes = math.prod(matrix.shape) * matrix.dtype.itemsize
    return bool(free - n_bytes >= free_share * total)


def take_dense(tensor: HostTensor, device: torch.device) -> Weight:
    """Take a tensor with a number for every value."""
    name = tensor.format.name
    dtype = KEPT[name][0] if name in KEPT else torch.bfloat16
    values = torch.empty(tensor.n_values, dtype=dtype, device=device)
    if name in KEPT and device.type == "cuda":
        uploads().send(tensor.data, values.view(torch.uint8))
    else:
        fill(values, tensor)
    tensor.forget()
    n_rows, n_cols = tensor.shape[-2:]
    n_stack = math.prod(tensor.shape[:-2])
    n_bytes = values.numel() * values.element_size()
    kernel = f"dense {SHORT[dtype]}"
    return Weight(tensor.name, name, kernel, n_rows, n_cols, n_bytes, values.view(tensor.shape), n_stack)


def fill(values: torch.Tensor, tensor: HostTensor) -> None:
    """Write the values of a tensor to the device, converted where it does not store them as they are."""
    at = 0
    for part in parts(tensor):
        values[at : at + len(part)] = part.to(values.device)
        at += len(part)


def parts(tensor: HostTensor) -> Iterator[torch.Tensor]:
    """The values in order, a chunk at a time, in a type the device stores or converts itself."""
    form = tensor.format
    n_bytes = max(1, CHUNK // form.block) * form.block_bytes
    for at in range(0, tensor.n_bytes, n_bytes):
        data = tensor.data[at : at + n_bytes]
        if form.name in KEPT:
            dtype, code = KEPT[form.name]
            yield torch.from_numpy(data.view(f"<{code}").copy()).view(dtype)  # a copy: torch wants writable memory
        else:
            n = len(data) // form.block_bytes * form.block
            yield torch.from_numpy(replace(tensor, shape=(n,), data=data).dense())


def join(linears: Sequence[Linear], lora_rows: int) -> JoinedLinears:
    """Linears as one matrix of which theirs are views; side by side where their types differ."""
    spare = with_spare_rows(linears, lora_rows) if lora_rows and may_have_spare_rows(linears) else None
    if not joinable(linears) or (len(linears) == 1 and not spare):
        return JoinedLinears(tuple(linears))
    heights = [linear.weight.n_rows for linear in linears]
    matrices = [linear.weight.data for linear in linears]
    one: torch.Tensor | CodedMatrix | Fp8Matrix
    if isinstance(matrices[0], torch.Tensor):
        one = spare.matrix[: spare.n_out] if spare else torch.cat(matrices)
        views = list(one.split(heights))
    else:
        join_matrices = joined_fp8 if isinstance(matrices[0], Fp8Matrix) else joined
        one = join_matrices(matrices)
        ends = accumulate(heights)
        views = [one.rows(end - height, end) for end, height in zip(ends, heights, strict=True)]
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    parts = []
    for linear, view in zip(linears, views, strict=True):
        weight = replace(linear.weight, data=view)
        parts.append(replace(linear, weight=weight))
    return JoinedLinears(tuple(parts), JoinedMatrix(one, bias, heights), spare)


def may_have_spare_rows(linears: Sequence[Linear]) -> bool:
    """Whether adapters of these may be rows behind their matrices: those of 16-bit floats that become one."""
    matrix = linears[0].weight.data
    is_half = isinstance(matrix, torch.Tensor) and matrix.dim() == 2 and matrix.dtype != torch.float32
    return is_half and joinable(linears) and len(linears) <= MAX_TARGETS


def joinable(linears: Sequence[Linear]) -> bool:
    """Whether all have the same columns, the same type, and all or none a bias."""
    kinds = {(kind_of(li.weight.data), li.weight.n_cols, li.weight.n_stack, li.bias is None) for li in linears}
    return len(kinds) == 1


def kind_of(matrix: torch.Tensor | CodedMatrix | Fp8Matrix) -> object:
    """Common properties of matrices that may become one."""
    return matrix.kind if isinstance(matrix, CodedMatrix) else (type(matrix), matrix.dtype)
