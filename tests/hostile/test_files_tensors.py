"""Tensors of another shape or format than the configuration asks for, or missing: refused in a sentence.

Where files hold several linears in one tensor, or a table in two, tensors are cut, turned and added before anybody asks
for a shape; these families are the ones to try.
"""

from collections.abc import Callable

import numpy as np
import pytest

import encoder_cases
import model_cases
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import TahrError
from tahr.models.loader.load import OpenedModel, load
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

DECODERS = ("phi3", "gpt_oss", "granitemoeshared", "qwen3_next")
ENCODERS = ("bert", "bert_ranker", "roberta", "nomic_bert")
ODD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "no rows": lambda a: a[:0],
    "one number": lambda a: a.reshape(-1)[0],
    "flat": lambda a: a.reshape(-1),
    "one more axis": lambda a: a[None],
    "one column": lambda a: a[..., :1],
    "a row less": lambda a: a[:-1],
    "half as wide": lambda a: a.astype("<f2"),
    "bytes": lambda a: a.astype(np.uint8),
}
TYPES = {"<f4": "F32", "<f2": "F16", "|u1": "U8"}


def host(name: str, values: np.ndarray) -> HostTensor:
    stored = np.ascontiguousarray(values)
    return HostTensor(name, FORMATS[TYPES[values.dtype.str]], values.shape, stored.reshape(-1).view(np.uint8))


def opened(case: str) -> OpenedModel:
    is_encoder = case in ENCODERS
    config = encoder_cases.CASES[case] if is_encoder else model_cases.CASES[case]
    arrays = encoder_cases.make_weights(case) if is_encoder else model_cases.make_weights(config)
    return OpenedModel(case, "safetensors", config, {n: host(n, a) for n, a in arrays.items()}, 1, {})


def use(source: OpenedModel, tensors: dict[str, HostTensor], n_ranks: int = 1) -> str:
    """What loading says of these tensors; nothing, where it finds no fault."""
    try:
        load(
            OpenedModel(source.name, source.format, source.config, tensors, 1, {}), ReferenceBackend(), n_ranks=n_ranks
        )
    except TahrError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("case", [*DECODERS, *ENCODERS])
def test_odd_tensors(case: str) -> None:
    source = opened(case)
    sound = dict(source.tensors)
    assert not use(source, sound)
    first = [name for name in sound if not any(f".{i}." in name for i in range(1, 9))]
    for name in first:
        values = sound[name].dense()
        for change in ODD.values():
            with np.errstate(over="ignore", invalid="ignore"):
                found = change(values)
            message = use(source, {**sound, name: host(name, np.asarray(found))})
            assert not message or message.endswith("."), message
        use(source, {other: tensor for other, tensor in sound.items() if other != name})


@pytest.mark.parametrize("n_ranks", [2, 4])
@pytest.mark.parametrize("case", ["llama_biased", "phi3", "gpt_oss", "qwen3_moe", "cohere_plus"])
def test_odd_tensors_over_ranks(case: str, n_ranks: int) -> None:
    """Each is cut before a rank asks for a shape: what one rank refuses, several refuse."""
    source = opened(case)
    sound = dict(source.tensors)
    assert not use(source, sound, n_ranks)
    for name, tensor in sound.items():
        if ".layers.0." not in name and ".layers." in name:
            continue
        for odd in ODD.values():
            changed = {**sound, name: host(name, odd(tensor.dense()))}
            if use(source, changed):
                assert use(source, changed, n_ranks), f"{name} {changed[name].shape}"
        others = {other: tensor for other, tensor in sound.items() if other != name}
        if use(source, others):
            assert use(source, others, n_ranks), name


@pytest.mark.parametrize("case", ["bert", "bert_ranker", "roberta", "nomic_bert"])
@pytest.mark.parametrize("part", ["token_type_embeddings", "position_embeddings"])
def test_tables_are_not_stretched(case: str, part: str) -> None:
    """NumPy adds a column to a matrix of any width."""
    source = opened(case)
    for name, tensor in source.tensors.items():
        if part in name:
            narrow = host(name, tensor.dense()[:, :1])
            assert "shape" in use(source, {**source.tensors, name: narrow})


def test_codes_without_scales() -> None:
    source = opened("gpt_oss")
    name = next(name for name in source.tensors if name.endswith("experts.gate_up_proj"))
    others = {other: tensor for other, tensor in source.tensors.items() if other != name}
    blocks = host(f"{name}_blocks", np.zeros((4, 64, 2, 16), np.uint8))
    assert "_scales" in use(source, {**others, blocks.name: blocks})
