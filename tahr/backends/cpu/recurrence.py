"""Recurrent layers of the CPU backend."""

from collections.abc import Sequence

from tahr import _native as native
from tahr.backends.api import DeltaNet, LayerMemory, Tensor
from tahr.backends.cpu.memory import Buffer, address_of
from tahr.backends.cpu.queue import Queue
from tahr.errors import UnsupportedModel


def check_delta_net(net: DeltaNet) -> None:
    """Refuse, when a model is loaded, what no kernel has room for."""
    if max(net.k_dim, net.v_dim) > native.MAX_STATE_DIM or net.kernel > native.MAX_CONV_KERNEL:
        raise UnsupportedModel(
            f"This model's recurrent heads have {net.k_dim} and {net.v_dim} numbers and {net.kernel} taps; the cpu "
            f"backend has room for {native.MAX_STATE_DIM} and {native.MAX_CONV_KERNEL}: choose another model."
        )


def enqueue_delta_net(queue: Queue, parts: Sequence[Tensor], net: DeltaNet, memory: LayerMemory, out: Tensor) -> None:
    """Append the ops of one layer; the tensors and vectors are kept by the caller."""
    step, (qkv, z, beta, alpha) = memory.step, parts
    mixed = Buffer(queue.arena, qkv.data.count, 4 * net.channels)
    vectors = {name: address_of(getattr(net, name).data) for name in ("conv", "decay", "dt_bias", "gain")}
    queue.tape.delta_net(
        counts=address_of(step.counts),
        positions=address_of(step.positions),
        starts=address_of(step.query_start),
        slots=address_of(step.state_slots),
        n_k_heads=net.n_k_heads,
        n_v_heads=net.n_v_heads,
        k_dim=net.k_dim,
        v_dim=net.v_dim,
        kernel=net.kernel,
        tiled=net.tiled,
        qkv=qkv.data.address,
        z=z.data.address,
        beta=beta.data.address,
        alpha=alpha.data.address,
        **vectors,
        eps=net.eps,
        mixed=mixed.address,
        out=out.data.address,
        state=address_of(memory.data),
        state_width=net.state_width,
    )
