"""Adapters whose first factors are rows behind the matrices of a GPU."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import backends_here
from engines import greedy, run, submit
from lora_files import fill_rows, random_adapter, random_factors, write_peft
from model_cases import CASES, make_weights, token_ids
from model_files import write_hf
from model_runs import Runs
from random_weights import random_tensor
from tahr.backends.api import Backend, Linear, LinearShape, LoraBank, Rows, StepLimits, Tensor
from tahr.backends.cuda.layouts import presence as cuda_presence
from tahr.backends.reference.backend import ReferenceBackend
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.loading.builder import build_engine, kept_lora_rows
from tahr.models.loader import load, open_model
from tahr.models.loader.registry import from_hf
from tahr.models.lora import AdapterTarget
from tahr.models.lora.adapter import ADAPTED
from test_cuda import HALVES, check, half_rows, needs_cuda, typical_error

HEIGHTS, WIDTH = {"q": 40, "k": 24, "v": 24, "o": 72}, 96
ADAPTABLE = [case for case, config in CASES.items() if from_hf(config).family in ADAPTED]
# Interpreted, a model takes most of a minute; these have biases, experts beside a shared one, MLPs without a gate.
INTERPRETED = ["llama_biased", "qwen2_moe", "starcoder2"]


class Linears:
    """Three joined linears and one alone, with a bias, room behind them, and adapters in a bank."""

    def __init__(self, be: Backend, form: str, n: int, lora_rows: int, rng: np.random.Generator):
        self.be, self.form, self.rng = be, form, rng
        self.x = be.rms_norm(half_rows(be, form, n, WIDTH, rng), be.vector(np.ones(WIDTH, np.float32)), 1e-6)
        made = {name: be.weight(random_tensor(form, (height, WIDTH), rng)) for name, height in HEIGHTS.items()}
        bias = be.vector(rng.standard_normal(HEIGHTS["o"]).astype(np.float32))
        self.qkv = be.join([Linear(made[name], None, name) for name in "qkv"], lora_rows)
        alone = be.join([Linear(made["o"], bias, "o")], lora_rows)
        self.o, spare_rows = alone.parts[0], dict.fromkeys("qkv", self.qkv.spare_rows) | {"o": alone.spare_rows}
        self.shapes = {
            name: LinearShape(height, WIDTH, f"dense {form.lower()}", spare_rows[name])
            for name, height in HEIGHTS.items()
        }
        self.bank: LoraBank = be.lora_bank(self.shapes, StepLimits(n, n, n, 1))

    def put(self, slot: int, rank: int, names: str = "qkvo") -> None:
        factors = {name: random_factors(self.shapes[name], rank, self.rng, self.form, 0.5) for name in "qkvo"}
        self.bank.put(slot, self.bank.prepare({name: factors[name] for name in names}))

    def run(self) -> list[np.ndarray]:
        results: list[Tensor] = [*self.be.linears(self.x, self.qkv), self.be.linear(self.x, self.o)]
        results.append(self.be.linear(self.x, self.qkv.parts[1]))  # a part alone, as no model runs it
        return [np.array(self.be.read(y)) for y in results]

    def adapted(self, n_rounds: int = 1) -> list[np.ndarray]:
        with self.be.adapting(self.bank, n_rounds):
            return self.run()


@needs_cuda
@pytest.mark.parametrize("form", HALVES)
@pytest.mark.parametrize("n", [2, 16, 17, 40])
@pytest.mark.parametrize("stacked", [False, True])
def test_adapters_behind_matrices(form: str, n: int, stacked: bool) -> None:
    """Rows with one adapter, several and none, of many ranks, one of them of a single linear."""
    stacks = [[], [(1, 1.0)], [(2, -0.5), (1, 2.0)], *([(slot, 1.0)] for slot in range(3, 11)), [(1, 0.5)]]

    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        linears = Linears(be, form, n, 240, rng)
        for slot in range(1, 11):
            linears.put(slot, 3 * slot, "k" if slot == 3 else "qkvo")
        assert linears.bank.note.count("240 of 240") == be.keeps_lora_rows
        fill_rows(linears.bank, Rows.TOKENS, [stack if stacked else stack[:1] for stack in (stacks * n)[:n]])
        return linears.adapted(4 if stacked else 1)

    check(run)


@needs_cuda
@pytest.mark.parametrize("form", HALVES)
@pytest.mark.parametrize("n", [1, 5, 40])
def test_room_changes_no_bit_without_adapters(form: str, n: int) -> None:
    be = backends_here.backend("cuda")
    plain, roomy = (Linears(be, form, n, lora_rows, np.random.default_rng(3)).run() for lora_rows in (0, 64))
    for want, have in zip(plain, roomy, strict=True):
        np.testing.assert_array_equal(have, want)


@needs_cuda
@pytest.mark.parametrize("form", HALVES)
def test_an_adapter_without_room_moves_in_when_there_is_some(form: str) -> None:
    """The rows of the step are not written again meanwhile: requests go on with the adapters they have."""

    def run(be: Backend, rng: np.random.Generator) -> list[np.ndarray]:
        linears, found, n_used = Linears(be, form, 20, 48, rng), [], []
        for slot, rank in enumerate((16, 5, 32), start=1):
            linears.put(slot, rank)
            fill_rows(linears.bank, Rows.TOKENS, [[(1 + i % slot, 1.0)] for i in range(20)])
            found += linears.adapted()
            n_used.append(linears.bank.plan_key[-1])
        fill_rows(linears.bank, Rows.TOKENS, [[(3, 1.0)] for _ in range(20)])
        for slot in (1, 2):
            linears.bank.clear(slot)
            found += linears.adapted()
            n_used.append(linears.bank.plan_key[-1])
        linears.put(4, 16)
        fill_rows(linears.bank, Rows.TOKENS, [[(3 + i % 2, 1.0)] for i in range(20)])
        assert [*n_used, linears.bank.plan_key[-1]] == [16, 32, 0, 0, 32, 48] or not be.keeps_lora_rows
        return found + linears.adapted()

    check(run)


@needs_cuda
def test_two_banks_do_not_share_rows() -> None:
    linears = Linears(backends_here.backend("cuda"), HALVES[0], 1, 32, np.random.default_rng(1))
    linears.put(1, 16)
    first, linears.bank = linears.bank, linears.be.lora_bank(linears.shapes, StepLimits(1, 1, 1, 1))
    linears.put(1, 16)
    assert (first.plan_key[-1], linears.bank.plan_key[-1]) == (16, 0)


@needs_cuda
@pytest.mark.parametrize("case", INTERPRETED if cuda_presence.interprets() else ADAPTABLE)
def test_models_with_room_and_without(case: str, tmp_path: Path) -> None:
    """Outputs with room have rows further apart: no layer of any family may mind."""
    folder = write_hf(tmp_path, CASES[case], make_weights(CASES[case]), HALVES[-1])
    be, found = backends_here.backend("cuda"), []
    for lora_rows in (0, 32):
        loaded = load(open_model([], folder), be, lora_rows=lora_rows)
        runs, decoder = Runs(loaded, be), loaded.decoder
        bank = be.lora_bank(decoder.linears, runs.limits)
        adapter = random_adapter(AdapterTarget("", decoder.config, decoder.linears), 1, form=HALVES[-1])
        bank.put(1, bank.prepare(adapter.factors))
        for kind in (Rows.TOKENS, Rows.LOGITS):
            fill_rows(bank, kind, [[(1, 1.0)] for _ in token_ids()])
        with be.adapting(bank, 1):
            found.append(runs.eager([(0, token_ids())]))
    base = runs.eager([(0, token_ids())])
    assert typical_error(found[1], found[0]) <= max(0.02, 0.2 * typical_error(found[0], base))
    assert typical_error(found[0], base) > 0.02, "the adapter does something"


@needs_cuda
def test_adapters_come_and_go_while_others_run(tmp_path: Path) -> None:
    """Steps are replayed meanwhile: captured graphs find the new rows, and no step sees half of an adapter."""
    config, be, form = CASES["llama"], backends_here.backend("cuda"), HALVES[-1]
    decoder = load(open_model([], write_hf(tmp_path, config, make_weights(config), form)), be, lora_rows=64).decoder
    options = EngineConfig(context_size=32, max_batch_size=4, kv_bytes=1 << 20, kv_dtype="f16", prefix_cache=False)
    eng = build_engine(be, decoder, options)[0]
    target = AdapterTarget("", decoder.config, decoder.linears)
    made = [random_adapter(target, seed, rank=4 + seed, strength=0.5, form=form) for seed in range(4)]

    def add(name: str, seed: int) -> None:
        data = eng.executor.adapters.bring(made[seed])
        eng.adapters.add(name, data)

    def replies(*changes: Callable[[], object]) -> list[list[int]]:
        loras = ["a0", "a2", "", "a0"]
        seqs = [submit(eng, token_ids()[:3], greedy(lora=lora or (), max_tokens=9)) for lora in loras]
        for change in changes:
            eng.step()
            eng.step()
            change()
        return run(eng, *seqs)

    for i in range(4):
        add(f"a{i}", i)
    before = replies()
    eng.adapters.remove("a1")
    n_used = eng.executor.adapters.bank.plan_key[-1]
    assert n_used == 64 and replies(lambda: add("b", 3), lambda: eng.adapters.remove("a3")) == before
    add("a1", 1)  # in other rows than before
    add("c", 0)  # without room
    assert eng.executor.adapters.bank.plan_key[-1] == 0
    eng.adapters.remove("c")
    assert eng.executor.adapters.bank.plan_key[-1] == n_used and replies() == before
    assert len({tuple(reply) for reply in before}) == 3


def test_rows_are_kept_where_adapters_are_expected(tmp_path: Path) -> None:
    cpu, gpu = ReferenceBackend(), ReferenceBackend()
    gpu.keeps_lora_rows = True
    adapter = f"a={write_peft(tmp_path, {})}"
    assert kept_lora_rows(EngineConfig(), gpu) == kept_lora_rows(EngineConfig(loras=(adapter,)), cpu) == 0
    assert kept_lora_rows(EngineConfig(loras=(adapter,)), gpu) == 128
    assert kept_lora_rows(EngineConfig(lora_rows=20), gpu) == 32
    assert kept_lora_rows(EngineConfig(loras=(adapter,), lora_rows=0), gpu) == 0
    with pytest.raises(ConfigError, match="leave it out here"):
        kept_lora_rows(EngineConfig(lora_rows=16), cpu)
