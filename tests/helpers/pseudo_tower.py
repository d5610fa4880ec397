"""A tower that is no model's: its rows depend on every byte of an input and on where it stands; engines around it."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np

from backends_here import backend
from engines import BACKEND, Tally, greedy, run
from late_backend import LateBackend
from random_weights import random_tensor
from tahr.backends.api import (
    AttentionSpec,
    Backend,
    KVShape,
    KVStore,
    LayerMemory,
    Linear,
    Rope,
    Rotation,
    StepInputs,
    Tensor,
)
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import PromptRows, RowSource
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence as Seq
from tahr.grammar.state import GrammarState
from tahr.kv.row_slots import RowSpan
from tahr.loading.builder import build_engine
from tahr.loading.row_inputs import RowInputs
from tahr.loading.speculation import Draft
from tahr.models.decoder import Decoder
from tahr.models.loader.load import load, open_model
from tahr.weights.watch import FileWatch

WIDTH_IN = 12
WIDTH = 32
HEADS = 2
PLACEHOLDER = 3  # any token: what stands there is not looked at
JOINED = 2  # input rows of a row
SHORT = greedy(8, logprobs=2)
FREQUENCIES = (100.0 ** -(np.arange(8) / 8)).astype(np.float32)


class PseudoTower:
    """Two parts of a layer each; the second gives one row for every `JOINED` of an input."""

    windowed = ()
    n_joined = 0
    width_in = WIDTH_IN
    width = WIDTH
    memory = KVShape(HEADS, WIDTH // HEADS)

    def __init__(self, be: Backend, width_out: int, n_tokens: int):
        self.n_tokens = n_tokens
        rng = np.random.default_rng(11)
        self.files = FileWatch([])
        self.parts = (self.first, self.last)
        self._rope = Rope(FREQUENCIES, axes=(0, 1, 2, 0, 1, 2, 0, 1))
        self._entry, self._exit = (linear(be, rng, *size) for size in ((WIDTH, WIDTH_IN), (width_out, WIDTH)))
        self._layers = [[linear(be, rng, WIDTH, WIDTH) for _ in range(3)] for _ in self.parts]
        self.matrix = self._entry
        self.n_runs = 0  # that were recorded or called

    def first(self, be: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        x = self._layer(be, step, kv, 0, be.linear(be.take_rows(step, WIDTH_IN), self._entry))
        be.store_rows(x, step)
        return x

    def last(self, be: Backend, step: StepInputs, kv: KVStore) -> Tensor:
        x = self._layer(be, step, kv, 1, be.take_rows(step, WIDTH))
        rows = be.linear(be.gather_rows(x, step), self._exit)
        be.store_rows(rows, step)
        return rows

    def _layer(self, be: Backend, step: StepInputs, kv: KVStore, layer: int, x: Tensor) -> Tensor:
        memory = LayerMemory(step, kv, 0)
        rotation = Rotation(be.cos_sin(step, self._rope), "halves")
        qkv = [be.linear(x, each) for each in self._layers[layer]]
        return be.add(x, be.rope_attention(qkv, rotation, AttentionSpec(0.25, causal=False), memory))


def linear(be: Backend, rng: np.random.Generator, n_rows: int, n_cols: int) -> Linear:
    return Linear(be.weight(random_tensor("F32", (n_rows, n_cols), rng)))


# ---- engines --------------------------------------------------------------------------------------------------


@cache
def story_decoder(path: Path, name: str = BACKEND, number: int = 0) -> Decoder:
    return load(open_model([path]), backend(name, deterministic=True, number=number)).decoder


def with_axes(decoder: Decoder) -> Decoder:
    """The same model, each frequency of whose ropes is turned by another axis than its neighbours."""
    turned = copy(decoder)
    turned.ropes = {
        kind: replace(rope, axes=tuple(i % 3 for i in range(len(rope.inv_freq))))
        for kind, rope in decoder.ropes.items()
    }
    return turned


def row_engine(
    path: Path,
    late: bool = False,
    name: str = BACKEND,
    n_slots: int = 64,
    axes: bool = False,
    tower: bool = True,
    tower_tokens: int = 64,
    draft: bool | Draft = False,
    number: int = 0,
    **options: object,
) -> Engine:
    """An engine whose model reads rows, on the backend of a number."""
    be = backend(name, deterministic=True, number=number)
    decoder = story_decoder(path, name, number)
    made = PseudoTower(be, decoder.row_width, tower_tokens) if tower else None
    inputs = RowInputs(4 * decoder.row_width * n_slots, made)
    config = EngineConfig(**{"context_size": 256, "page_size": 8, **options})  # type: ignore[arg-type]
    device = LateBackend(be) if late and not be.overlaps else be
    other = draft if isinstance(draft, Draft) else Draft("itself", decoder) if draft else None
    return build_engine(device, with_axes(decoder) if axes else decoder, config, row_inputs=inputs, draft=other)[0]  # type: ignore[arg-type]


# ---- prompts --------------------------------------------------------------------------------------------------


def source(seed: int, n_rows: int) -> RowSource:
    """An input that gives so many rows, unlike that of any other seed."""
    rng = np.random.default_rng(seed)
    n = JOINED * n_rows
    values = rng.standard_normal((n, WIDTH_IN)).astype(np.float32)
    places = np.stack([np.full(n, seed % 3), np.arange(n) // 4, np.arange(n) % 4]).astype(np.int32)
    return RowSource(values, np.arange(0, n, JOINED), places)


def digest_of(each: RowSource) -> bytes:
    return blake2b(each.values.tobytes(), digest_size=16).digest()


Part = list[int] | tuple[int, int]  # tokens, or an input: its seed and how many rows it gives


def prompt_of(parts: Sequence[Part], axes: bool = False) -> tuple[list[int], PromptRows]:
    """Tokens with placeholders, and what these stand for."""
    tokens: list[int] = []
    spans: list[RowSpan] = []
    sources: dict[bytes, RowSource] = {}
    for part in parts:
        if isinstance(part, list):
            tokens += part
            continue
        made = source(*part)
        digest = digest_of(made)
        sources[digest] = made
        spans.append(RowSpan(len(tokens), part[1], digest))
        tokens += [PLACEHOLDER] * part[1]
    return tokens, PromptRows(tuple(spans), sources, turned_positions(len(tokens), spans) if axes else None)


def turned_positions(n: int, spans: list[RowSpan]) -> np.ndarray:
    """All tokens of a span have one time, and a place in a picture two wide; texts go on from the largest."""
    found = np.zeros((3, n), np.int32)
    at = next_at = 0
    for span in [*spans, RowSpan(n, 0, b"")]:
        found[:, at : span.begin] = next_at + np.arange(span.begin - at)
        next_at += span.begin - at
        places = np.arange(span.rows)
        found[:, span.begin : span.end] = next_at + np.stack([np.zeros_like(places), places // 2, places % 2])
        next_at += -(-span.rows // 2)
        at = span.end
    return found


def submit_parts(
    eng: Engine,
    parts: Sequence[Part],
    params: SamplingParams,
    axes: bool = False,
    grammar: GrammarState | None = None,
) -> Seq:
    tokens, rows = prompt_of(parts, axes)
    if eng.executor.tower is None:
        rows = computed(eng, rows)
    return eng.submit(ResolvedRequest(tokens, params, Tally, rows=rows), grammar)


def computed(eng: Engine, rows: PromptRows) -> PromptRows:
    """The same where the host gives rows themselves: any that follow from the input will do."""
    width = eng.facts.rows.width
    made = {}
    for digest, each in rows.sources.items():
        rng = np.random.default_rng(list(digest))
        made[digest] = RowSource(rng.standard_normal((len(each.values) // JOINED, width)).astype(np.float32))
    return PromptRows(rows.spans, made, rows.rope_positions)


def replies(eng: Engine, *sequences: Seq) -> list[object]:
    """Tokens and log-probabilities of every choice, once all are there; rows are checked when all is over."""
    run(eng, *sequences, *(fork for seq in sequences for fork in seq.queueing.forks))
    rows = eng.scheduler.rows
    assert rows
    rows.check()
    assert not rows.slots.n_held
    return [
        (each.tokens, each.result.logprobs, each.result.prompt_logprobs)
        for seq in sequences
        for each in (seq, *seq.queueing.forks)
    ]


def alone(path: Path, parts: Sequence[Part], params: SamplingParams = SHORT, **options: object) -> list[object]:
    """The reply of an engine that has seen nothing else."""
    eng = row_engine(path, **{"prefix_cache": False, **options})  # type: ignore[arg-type]
    return replies(eng, submit_parts(eng, parts, params, bool(options.get("axes"))))
