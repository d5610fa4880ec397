"""Recurrent layers of the CPU backend."""

from collections.abc import Sequence
from typing import Any

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.api import DeltaNet, LayerMemory, StateSpace, Tensor
from tahr.backends.cpu.memory import Buffer
from tahr.backends.cpu.queue import Queue
from tahr.errors import UnsupportedModel


def check_delta_net(net: DeltaNet) -> None:
    """Refuse, when a model is loaded, heads that are too wide for the kernels."""
    if max(net.k_dim, net.v_dim) > native.MAX_STATE_DIM or net.kernel > native.MAX_CONV_KERNEL:
        raise UnsupportedModel(
            f"This model's recurrent heads have {net.k_dim} and {net.v_dim} numbers and {net.kernel} taps; the cpu "
            f"backend has room for {native.MAX_STATE_DIM} and {native.MAX_CONV_KERNEL}: choose another model."
        )


def check_state_space(net: StateSpace) -> None:
    """Refuse, when a model is loaded, convolutions that are wider than the kernels allow."""
    if net.kernel > native.MAX_CONV_KERNEL:
        raise UnsupportedModel(
            f"This model's recurrent layers have {net.kernel} taps; the cpu backend has room for "
            f"{native.MAX_CONV_KERNEL}: choose another model."
        )


def sequences(memory: LayerMemory, state_width: int) -> native.StateSequences:
    step = memory.step
    return native.StateSequences(
        counts=address_of(step.counts),
        positions=address_of(step.positions),
        starts=address_of(step.query_start),
        slots=address_of(step.state_slots),
        state=address_of(memory.data),
        state_width=state_width,
    )


def enqueue_conv(queue: Queue, x: Tensor, net: DeltaNet | StateSpace, memory: LayerMemory) -> Buffer:
    """Enqueue the convolution of the channels; the result lies in the buffer."""
    mixed = Buffer(queue.arena, x.data.count, 4 * net.channels)
    bias = net.conv_bias if isinstance(net, StateSpace) else None
    queue.tape.causal_conv(
        seqs=sequences(memory, net.state_width),
        channels=net.channels,
        kernel=net.kernel,
        x=x.data.address,
        conv=address_of(net.conv.data),
        bias=address_of(bias.data) if bias else 0,
        out=mixed.address,
    )
    return mixed


def of_layer(net: DeltaNet | StateSpace, memory: LayerMemory, mixed: Buffer) -> dict[str, Any]:
    """Arguments that both kinds of recurrence have."""
    return {
        "seqs": sequences(memory, net.state_width),
        "matrices": (net.kernel - 1) * net.channels,
        "mixed": mixed.address,
        "decay": address_of(net.decay.data),
        "dt_bias": address_of(net.dt_bias.data),
    }


def enqueue_delta_net(queue: Queue, parts: Sequence[Tensor], net: DeltaNet, memory: LayerMemory, out: Tensor) -> None:
    """Append the ops of one layer; the tensors and vectors are kept by the caller."""
    qkv, z, beta, alpha = parts
    mixed = enqueue_conv(queue, qkv, net, memory)
    queue.tape.delta_rule(
        **of_layer(net, memory, mixed),
        n_k_heads=net.n_k_heads,
        n_v_heads=net.n_v_heads,
        k_dim=net.k_dim,
        v_dim=net.v_dim,
        tiled=net.tiled,
        z=z.data.address,
        beta=beta.data.address,
        alpha=alpha.data.address,
        gain=address_of(net.gain.data),
        eps=net.eps,
        out=out.data.address,
    )


def enqueue_state_space(
    queue: Queue, parts: Sequence[Tensor], net: StateSpace, memory: LayerMemory, out: Tensor
) -> None:
    z, xbc, dt = parts
    mixed = enqueue_conv(queue, xbc, net, memory)
    queue.tape.state_space(
        **of_layer(net, memory, mixed),
        n_heads=net.n_heads,
        head_dim=net.head_dim,
        n_groups=net.n_groups,
        state_dim=net.state_dim,
        dt=dt.data.address,
        skip=address_of(net.skip.data),
        out=out.data.address,
    )
    queue.tape.gated_norm(
        n_rows=z.data.count.address,
        width=net.width,
        n_groups=net.n_norm_groups,
        z=z.data.address,
        gain=address_of(net.gain.data) if net.gain else 0,
        eps=net.eps,
        x=out.data.address,
    )
