"""Ops that only some families take, against the reference backend: as `test_ops` does for the others."""

from typing import Any

import numpy as np
import pytest

from backends_here import kv_store
from op_steps import PAGE, full_store, rows, step_of
from random_weights import random_tensor
from tahr.backends.api import (
    AttentionScaling,
    AttentionSpec,
    Backend,
    DeltaNet,
    ExpertMLPs,
    HeadNorms,
    KVShape,
    LayerMemory,
    Linear,
    Rope,
    Rotation,
    Routing,
    StateShape,
    StateSpace,
)
from test_ops import OTHERS, Arrays, Case, compare


def layer_norms(be: Backend, rng: np.random.Generator) -> Arrays:
    x, y = be.tensor(rows(rng, 3, 100) + 2), be.tensor(rows(rng, 3, 100))
    gain, bias = (be.vector(rng.standard_normal(100).astype(np.float32)) for _ in range(2))
    total, normed = be.add_layer_norm(x, y, gain, None, 1e-5, scale=0.3)
    return [be.read(t) for t in (be.layer_norm(x, gain, bias, 1e-6), total, normed)]


def head_layer_norms(be: Backend, rng: np.random.Generator) -> Arrays:
    gain = be.vector(rng.standard_normal(3 * 36).astype(np.float32))
    return [be.read(be.head_layer_norm(be.tensor(rows(rng, 5, 3 * 36) + 2), gain, 1e-5, n_heads=3))]


def by_position(be: Backend, rng: np.random.Generator) -> Arrays:
    """Ops that read a token's position."""
    table = be.weight(random_tensor("F32", (101, 96), rng))
    step = step_of(be, [(9, 20), (100, 101)], [0], 10)
    scaled = be.scale_queries(be.tensor(rows(rng, 12, 96)), AttentionScaling(0.1, 10, 1), step)
    return [be.read(be.embed_positions(table, step)), be.read(scaled)]


def routed(name: str, form: str = "F32", act: Any = "silu", **more: Any) -> Case:
    """Experts chosen in the ways of different families."""

    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        shapes = [(12, 32, 64), (12, 32, 64), (12, 64, 32)]
        biases = [be.vector(rows(rng, 1, 12 * shape[1])[0]) if act == "clamped_swiglu" else None for shape in shapes]
        stacks = [be.weight(random_tensor(form, shape, rng)) for shape in shapes]
        gate, up, down = (Linear(stack, b) for stack, b in zip(stacks, biases, strict=True))
        bias = be.vector(rows(rng, 1, 12)[0]) if more.get("bias") else None
        factors = be.vector(rows(rng, 1, 12)[0]) if more.get("factors") else None
        chosen = {"n_active": 3, "renormalise": True, **more, "bias": bias, "factors": factors}
        mlps = ExpertMLPs(gate, up, down, Routing(**chosen), act)
        return [be.read(be.experts(be.tensor(rows(rng, 9, 64)), be.tensor(rows(rng, 9, 12)), mlps))]

    return Case(f"routed-{name}", run, 1e-5)


def delta_net(tiled: bool) -> Case:
    """Two sequences in two steps: the second goes on from the states of the first."""

    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        sizes = {"conv": 4 * 112, "decay": 4, "dt_bias": 4, "gain": 12}
        vectors = {name: rows(rng, 1, n)[0] for name, n in sizes.items()}
        vectors["decay"] = -np.exp(vectors["decay"])
        net = DeltaNet(2, 4, 16, 12, 4, tiled, eps=1e-6, **{name: be.vector(v) for name, v in vectors.items()})
        kv = kv_store(be, [StateShape((net.state_width,))], [], PAGE, "f32", [], n_slots=4)
        found = []
        for spans in ([(0, 7), (0, 2)], [(7, 8), (2, 4)]):
            step = step_of(be, spans, [0], 10)
            step.state_slots[:2] = 3, 1
            parts = [be.tensor(rows(rng, step.n_tokens, n)) for n in (net.channels, 48, 4, 4)]
            found.append(np.array(be.read(be.delta_net(parts, net, LayerMemory(step, kv, 0)))))
        return found

    return Case(f"delta-net{'-tiled' if tiled else ''}", run, 1e-5)


def state_space(n_groups: int, n_norm_groups: int) -> Case:
    """The same for the state space of Mamba-2; without groups of norms there is no norm."""

    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        channels = 48 + 2 * n_groups * 20
        sizes = {"conv": 4 * channels, "conv_bias": channels, "decay": 4, "dt_bias": 4, "skip": 4, "gain": 48}
        vectors = {name: rows(rng, 1, n)[0] for name, n in sizes.items()}
        vectors["decay"] = -np.exp(vectors["decay"])
        given = {name: be.vector(v) for name, v in vectors.items()} | ({} if n_norm_groups else {"gain": None})
        net = StateSpace(4, 12, n_groups, 20, 4, n_norm_groups=n_norm_groups or 1, eps=1e-6, **given)
        kv = kv_store(be, [StateShape((net.state_width,))], [], PAGE, "f32", [], n_slots=4)
        found = []
        for spans in ([(0, 7), (0, 2)], [(7, 8), (2, 4)]):
            step = step_of(be, spans, [0], 10)
            step.state_slots[:2] = 3, 1
            parts = [be.tensor(rows(rng, step.n_tokens, n)) for n in (48, net.channels, 4)]
            found.append(np.array(be.read(be.state_space(parts, net, LayerMemory(step, kv, 0)))))
        return found

    return Case(f"state-space-{n_groups}-{n_norm_groups}", run, 1e-5)


def heads_and_columns(be: Backend, rng: np.random.Generator) -> Arrays:
    x = be.tensor(rows(rng, 5, 96))
    return [be.read(be.head_norm(x, be.vector(rows(rng, 1, 12)[0]), 1e-6)), be.read(be.columns(x, 36, 24))]


def queries_alone(dtype: str) -> Case:
    """A layer that attends to the keys and values of another."""

    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        kv = full_store(be, rng, KVShape(2, 32), 2, dtype)
        step = step_of(be, [(30, 37), (90, 91)], [0], 10)
        gain, memory = be.vector(rows(rng, 1, 32)[0]), LayerMemory(step, kv, 0)
        angles = be.cos_sin(step, Rope((1000.0 ** -(np.arange(8) / 8)).astype(np.float32)))
        q = be.rope_and_cache(
            [be.tensor(rows(rng, 8, 128))], Rotation(angles, "halves", HeadNorms(gain, gain, 1e-6)), memory
        )
        return [be.read(be.attention(q, AttentionSpec(0.2), memory))]

    return Case(f"queries-alone-{dtype}", run, 1e-5)


def latent_attention(n_heads: int, dtype: str, spans: list[tuple[int, int]]) -> Case:
    """Values that are the last numbers of keys; keys are written by the step itself and were there before."""

    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        shape = KVShape(1, 56, latent=40)
        kv = full_store(be, rng, shape, 2, dtype)
        step = step_of(be, spans, [0], 10)
        memory, n = LayerMemory(step, kv, 0), step.n_tokens
        cos_sin = be.cos_sin(step, Rope((1000.0 ** -(np.arange(8) / 8)).astype(np.float32)))
        stack = Linear(be.weight(random_tensor("F32", (n_heads, 40, 24), rng)))
        queries = be.head_linears(be.tensor(rows(rng, n, n_heads * 24)), stack)
        queries = be.join_heads(be.tensor(rows(rng, n, n_heads * 16)), queries, n_heads)
        q = be.rope_and_cache([queries, be.tensor(rows(rng, n, 56))], Rotation(cos_sin, "pairs"), memory)
        return [np.array(be.read(q)), be.read(be.attention(q, AttentionSpec(0.2), memory))]

    return Case(f"latent-{n_heads}-{dtype}-{spans[0]}", run, 1e-5 if dtype == "f32" else 1e-3)


def head_linears(form: str) -> Case:
    def run(be: Backend, rng: np.random.Generator) -> Arrays:
        stack = Linear(be.weight(random_tensor(form, (5, 40, 64), rng)))
        return [be.read(be.head_linears(be.tensor(rows(rng, n, 5 * 64)), stack)) for n in (1, 37)]

    return Case(f"head-linears-{form}", run, 1e-5)


def gates(be: Backend, rng: np.random.Generator) -> Arrays:
    return [be.read(be.gate_rows(be.tensor(rows(rng, 5, 40)), be.tensor(rows(rng, 5, 1))))]


CASES = [
    Case("layer-norms", layer_norms),
    Case("head-layer-norms", head_layer_norms),
    Case("by-position", by_position),
    routed("biased", act="clamped_swiglu"),
    routed("biased-mxfp4", form="MXFP4", act="clamped_swiglu"),
    routed("sigmoid", sigmoid=True, bias=True, scale=2.5),
    routed("groups", n_groups=4, n_best_groups=2, renormalise=False, scale=3.0),
    routed("scaled-inputs", sigmoid=True, renormalise=False, scales_input=True),
    routed("scaled-inputs-q8_0", form="Q8_0", sigmoid=True, renormalise=False, scales_input=True),
    routed("jitter", jitter=0.2),
    routed("factors", factors=True),
    routed("softmax-groups", n_groups=4, n_best_groups=2, group_top=2),
    routed("sigmoid-groups", sigmoid=True, bias=True, n_groups=3, n_best_groups=2, group_top=2),
    delta_net(tiled=False),
    delta_net(tiled=True),
    state_space(1, 1),
    state_space(2, 4),
    state_space(4, 0),
    Case("gate-rows", gates),
    Case("heads-and-columns", heads_and_columns),
    queries_alone("f32"),
    queries_alone("q8_0"),
    latent_attention(2, "f32", [(30, 37), (90, 91)]),
    latent_attention(48, "f32", [(60, 61), (0, 1)]),
    latent_attention(5, "f16", [(0, 70)]),
    head_linears("F32"),
    head_linears("Q8_0"),
]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_op_of_some_families_equals_reference(case: Case, name: str) -> None:
    compare(case, name)
