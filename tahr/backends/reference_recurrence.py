"""Recurrent layers in plain NumPy: one token after the other."""

from collections.abc import Sequence

import numpy as np

from tahr.backends.api import DeltaNet, Floats, LayerMemory


def delta_net(parts: Sequence[Floats], net: DeltaNet, memory: LayerMemory) -> Floats:
    step, out = memory.step, np.zeros((len(parts[0]), net.n_v_heads * net.v_dim), np.float32)
    for seq in range(step.n_seqs):
        first, end = step.query_start[seq : seq + 2]
        state = memory.data[step.state_slots[seq]]
        if step.positions[first] == 0:
            state[:] = 0
        for token in range(first, end):
            out[token] = one_token([part[token] for part in parts], net, state)
    return out


def one_token(parts: Sequence[Floats], net: DeltaNet, state: Floats) -> Floats:
    """What comes out for a token; `state` goes on to the next."""
    qkv, z, beta, alpha = parts
    n_keys, n_past = net.n_k_heads * net.k_dim, (net.kernel - 1) * net.channels
    past, memories = state[:n_past].reshape(-1, net.channels), state[n_past:].reshape(-1, net.k_dim, net.v_dim)
    window = np.concatenate([past, qkv[None]])
    past[:] = window[1:]
    mixed = silu((window * net.conv.data.reshape(net.kernel, -1)).sum(axis=0))
    q, k = (units(mixed[i * n_keys : (i + 1) * n_keys].reshape(-1, net.k_dim)) for i in (0, 1))
    v = mixed[2 * n_keys :].reshape(-1, net.v_dim)
    heads = np.arange(net.n_v_heads)
    key_of = heads % net.n_k_heads if net.tiled else heads // (net.n_v_heads // net.n_k_heads)
    q, k = q[key_of] / np.float32(net.k_dim**0.5), k[key_of]
    memories *= np.exp(net.decay.data * np.logaddexp(0, alpha + net.dt_bias.data))[:, None, None]
    delta = (v - np.einsum("hkv,hk->hv", memories, k)) * (1 / (1 + np.exp(-beta)))[:, None]
    memories += k[:, :, None] * delta[:, None, :]
    answer = np.einsum("hkv,hk->hv", memories, q)
    normed = answer / np.sqrt(np.mean(np.square(answer), axis=1, keepdims=True) + np.float32(net.eps)) * net.gain.data
    gated: Floats = (normed * silu(z).reshape(normed.shape)).reshape(-1)
    return gated


def units(heads: Floats) -> Floats:
    found: Floats = heads / np.sqrt(np.square(heads).sum(axis=1, keepdims=True) + np.float32(1e-6))
    return found


def silu(x: Floats) -> Floats:
    found: Floats = x / (1 + np.exp(-x))
    return found
