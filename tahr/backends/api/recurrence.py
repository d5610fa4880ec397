"""Recurrent layers in plain NumPy, one token after the other: what the default bodies of their ops compute."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tahr.backends.api.arguments import DeltaNet, StateSpace
from tahr.backends.api.memory import LayerMemory
from tahr.backends.api.tensors import Floats

OneToken = Callable[[Sequence[Floats], Any, Floats], Floats]


def delta_net(parts: Sequence[Floats], net: DeltaNet, memory: LayerMemory) -> Floats:
    return token_by_token(parts, net, memory, np.zeros((len(parts[0]), net.n_v_heads * net.v_dim), np.float32), learn)


def state_space(parts: Sequence[Floats], net: StateSpace, memory: LayerMemory) -> Floats:
    return token_by_token(parts, net, memory, np.zeros((len(parts[0]), net.width), np.float32), take_in)


def token_by_token(parts: Sequence[Floats], net: Any, memory: LayerMemory, out: Floats, rule: OneToken) -> Floats:
    step = memory.step
    for seq in range(step.n_seqs):
        first, end = step.query_start[seq : seq + 2]
        state = memory.data[step.state_slots[seq]]
        if step.positions[first] == 0:
            state[:] = 0
        for token in range(first, end):
            out[token] = rule([part[token] for part in parts], net, state)
    return out


def convolved(x: Floats, net: DeltaNet | StateSpace, state: Floats) -> Floats:
    """Convolve a token; the state remembers it."""
    past = state[: (net.kernel - 1) * net.channels].reshape(-1, net.channels)
    window = np.concatenate([past, x[None]])
    past[:] = window[1:]
    mixed: Floats = (window * net.conv.data.reshape(net.kernel, -1)).sum(axis=0)
    return mixed


def learn(parts: Sequence[Floats], net: DeltaNet, state: Floats) -> Floats:
    """Take in a token and return its output; `state` goes on to the next."""
    qkv, z, beta, alpha = parts
    n_keys = net.n_k_heads * net.k_dim
    memories = matrices(net, state).reshape(-1, net.k_dim, net.v_dim)
    mixed = silu(convolved(qkv, net, state))
    q, k = (units(mixed[i * n_keys : (i + 1) * n_keys].reshape(-1, net.k_dim)) for i in (0, 1))
    v = mixed[2 * n_keys :].reshape(-1, net.v_dim)
    heads = np.arange(net.n_v_heads)
    key_of = heads % net.n_k_heads if net.tiled else heads // (net.n_v_heads // net.n_k_heads)
    q = q[key_of] / np.float32(net.k_dim**0.5)
    k = k[key_of]
    memories *= np.exp(net.decay.data * np.logaddexp(0, alpha + net.dt_bias.data))[:, None, None]
    delta = (v - np.einsum("hkv,hk->hv", memories, k)) * (1 / (1 + np.exp(-beta)))[:, None]
    memories += k[:, :, None] * delta[:, None, :]
    answer = np.einsum("hkv,hk->hv", memories, q)
    normed = answer / np.sqrt(np.mean(np.square(answer), axis=1, keepdims=True) + np.float32(net.eps)) * net.gain.data
    gated: Floats = (normed * silu(z).reshape(normed.shape)).reshape(-1)
    return gated


def take_in(parts: Sequence[Floats], net: StateSpace, state: Floats) -> Floats:
    """Take in a token and return its output; `state` goes on to the next."""
    z, xbc, dt = parts
    memories = matrices(net, state).reshape(-1, net.state_dim, net.head_dim)
    n_shared = net.n_heads // net.n_groups
    mixed = convolved(xbc, net, state)
    mixed = silu(mixed if net.conv_bias is None else mixed + net.conv_bias.data)
    x = mixed[: net.width].reshape(-1, net.head_dim)
    b, c = np.repeat(mixed[net.width :].reshape(2, net.n_groups, net.state_dim), n_shared, axis=1)
    t = np.logaddexp(0, dt + net.dt_bias.data).astype(np.float32)
    memories *= np.exp(net.decay.data * t)[:, None, None]
    memories += b[:, :, None] * (x * t[:, None])[:, None, :]
    answer = np.einsum("hsd,hs->hd", memories, c) + net.skip.data[:, None] * x
    gated: Floats = answer.reshape(-1) * silu(z)
    if net.gain is None:
        return gated
    parts_of_row = gated.reshape(net.n_norm_groups, -1)
    root = np.sqrt(np.mean(np.square(parts_of_row), axis=1, keepdims=True) + np.float32(net.eps))
    normed: Floats = (parts_of_row / root).reshape(-1) * net.gain.data
    return normed


def matrices(net: DeltaNet | StateSpace, state: Floats) -> Floats:
    """The part of a state behind the inputs of the convolution."""
    return state[(net.kernel - 1) * net.channels :]


def units(heads: Floats) -> Floats:
    found: Floats = heads / np.sqrt(np.square(heads).sum(axis=1, keepdims=True) + np.float32(1e-6))
    return found


def silu(x: Floats) -> Floats:
    found: Floats = x / (1 + np.exp(-x))
    return found
