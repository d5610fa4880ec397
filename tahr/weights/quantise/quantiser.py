"""Any tensor in any format that has a quantiser: the table, and tensors taken through it piece by piece."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tahr.errors import QuantError
from tahr.weights.dequantise.bits import Bytes, Floats
from tahr.weights.formats import Format
from tahr.weights.quantise import k_formats as k
from tahr.weights.quantise import simple, table
from tahr.weights.tensor import HostTensor
from tahr.weights.unread import Unread, unread

Quantiser = Callable[[Floats], Bytes]  # [n, block] finite values -> [n, block_bytes]

QUANTISERS: dict[str, Quantiser] = {
    "F32": simple.f32,
    "F16": simple.f16,
    "BF16": simple.bf16,
    "Q4_0": simple.q4_0,
    "Q4_1": simple.q4_1,
    "Q5_0": simple.q5_0,
    "Q5_1": simple.q5_1,
    "Q8_0": simple.q8_0,
    "Q2_K": k.q2_k,
    "Q3_K": k.q3_k,
    "Q4_K": k.q4_k,
    "Q5_K": k.q5_k,
    "Q6_K": k.q6_k,
    "IQ4_NL": table.iq4_nl,
    "IQ4_XS": table.iq4_xs,
    "MXFP4": table.mxfp4,
}
FLOATS = ("F64", "F32", "F16", "BF16")  # formats that lose nothing, or next to it

# Formats whose scales are no f16, and that reach further down.
FAR_REACHING = ("F32", "F16", "BF16", "MXFP4")
# An f16 scale is zero or at least 6e-8. Values far below that are zeros; the inverse of a square of theirs is infinite.
NEGLIGIBLE = np.float32(1e-15)

# Values quantised at a time. A multiple of every block, so that neither side's blocks are ever cut.
PIECE = 1 << 17
N_THREADS = min(16, os.cpu_count() or 1)


def quantise(values: Floats, stored_as: Format) -> Bytes:
    """Finite values, whole blocks of them in the order of the tensor, as `[n, block_bytes]`."""
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, stored_as.block)
    if stored_as.name not in FAR_REACHING:
        blocks = np.where(np.abs(blocks) < NEGLIGIBLE, np.float32(0), blocks)
    with np.errstate(over="raise", invalid="raise"):
        return QUANTISERS[stored_as.name](blocks)


def quantised(tensor: HostTensor, stored_as: Format) -> HostTensor:
    """The tensor in another format, in memory."""
    if tensor.format is stored_as:
        return tensor
    if isinstance(tensor.data, Unread):
        return HostTensor(tensor.name, stored_as, tensor.shape, unread((stored_as.n_bytes(tensor.n_values),)))
    data = np.empty(stored_as.n_bytes(tensor.n_values), np.uint8)
    at = 0
    for piece in pieces(tensor, stored_as):
        data[at : at + piece.size] = piece
        at += piece.size
    return HostTensor(tensor.name, stored_as, tensor.shape, data)


def pieces(tensor: HostTensor, stored_as: Format) -> Iterator[Bytes]:
    """The tensor's bytes in another format, some at a time and in order, worked on by all cores."""
    if tensor.format is stored_as:  # copied, also where Tahr could not make it
        yield from (tensor.data[at : at + PIECE] for at in range(0, tensor.n_bytes, PIECE))
        return
    check(tensor, stored_as)
    with ThreadPoolExecutor(N_THREADS) as pool:
        waiting: deque[Future[Bytes]] = deque()
        for at in range(0, tensor.n_values, PIECE):
            waiting.append(pool.submit(_piece, tensor, stored_as, at))
            if len(waiting) > 2 * N_THREADS:  # enough to keep everybody busy, few enough to keep memory small
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def check(tensor: HostTensor, stored_as: Format) -> None:
    """Refuse what cannot be stored that way."""
    if stored_as.name not in QUANTISERS:
        raise QuantError(f"Tahr cannot write {stored_as.name}. Choose one of: {', '.join(QUANTISERS)}.")
    if tensor.shape and tensor.shape[-1] % stored_as.block:
        raise QuantError(
            f"Tensor {tensor.name} has rows of {tensor.shape[-1]} values, and {stored_as.name} needs a multiple of "
            f"{stored_as.block}. Choose another format for it."
        )


def _piece(tensor: HostTensor, stored_as: Format, at: int) -> Bytes:
    stop = min(at + PIECE, tensor.n_values)
    stored = tensor.data[tensor.format.n_bytes(at) : tensor.format.n_bytes(stop)]
    values = tensor.format.dequantise(stored.reshape(-1, tensor.format.block_bytes))
    if not np.isfinite(values).all():
        raise QuantError(f"Tensor {tensor.name} holds infinities or NaNs, which no scale fits. Fetch the model again.")
    try:
        return quantise(values, stored_as).reshape(-1)
    except FloatingPointError as error:
        other = "F32" if stored_as.name == "BF16" else "BF16"
        raise QuantError(
            f"Tensor {tensor.name} holds values too large for {stored_as.name}. Choose another format, such as {other}."
        ) from error


def is_float(tensor: HostTensor) -> bool:
    """Whether nothing was lost yet in storing the tensor."""
    return tensor.format.name in FLOATS
