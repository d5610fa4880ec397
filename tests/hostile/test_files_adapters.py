"""Adapters and drafters that list more than any real one: refused before anything is made of it, because a server's
clients wait."""

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drafter_files import CASES as DRAFTERS
from drafter_files import make_arrays, write_drafter
from drafter_runs import config_for
from engines import loaded
from gguf_maker import Gguf, Typed, with_header
from lora_files import peft_config
from model_cases import CASES, make_weights
from model_files import write_hf
from tahr import LLM, SamplingParams
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import CorruptFile, LoadError, TahrError
from tahr.models.loader import load, open_model
from tahr.models.loader.drafters import load_drafter
from tahr.models.lora import AdapterTarget, open_adapter
from tahr.weights import open_gguf

PLAIN = {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}
KIND = {
    "general.architecture": Typed("str", "llama"),
    "general.type": Typed("str", "adapter"),
    "adapter.type": Typed("str", "lora"),
    "adapter.lora.alpha": Typed("f32", 8.0),
}


def peft(header: bytes | dict[str, Any]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "adapter_config.json").write_text(json.dumps(peft_config()))
        text = header if isinstance(header, bytes) else with_header(header, b"")
        (folder / "adapter_model.safetensors").write_bytes(text)
        return folder

    return write


def gguf(metadata: dict[str, Typed], n_tensors: int = 0, n_strings: int = 0) -> Callable[[Path], Path]:
    """With tensors of 128 bytes each, or with an array of empty strings."""

    def write(folder: Path) -> Path:
        made = Gguf(KIND | metadata, n_tensors=n_tensors, n_metadata=len(KIND) + len(metadata) + bool(n_strings))
        header = made.head() + b"".join(made.string(key) + made.value(item) for key, item in made.metadata.items())
        if n_strings:
            header += made.string("a") + struct.pack("<IIQ", 9, 8, n_strings) + bytes(8 * n_strings)
        infos = (made.string(f"blk.{i}.x") + struct.pack("<IQIQ", 1, 32, 0, 128 * i) for i in range(n_tensors))
        (folder / "a.gguf").write_bytes(header + b"".join(infos) + bytes(128 * n_tensors + 32))
        return folder / "a.gguf"

    return write


def json_text(body: bytes) -> bytes:
    return len(body).to_bytes(8, "little") + body


ATTACKS: dict[str, Callable[[Path], Path]] = {
    "200,000 tensors": peft({f"layers.{i}.self_attn.q_proj.lora_A.weight": PLAIN for i in range(200_000)}),
    "short names": peft({f"{i:x}": PLAIN for i in range(300_000)}),
    "empty objects": peft(json_text(b'{"a":[' + b"{}," * 2_000_000 + b"{}]}")),
    "empty lists": peft(json_text(b'{"a":[' + b"[]," * 2_000_000 + b"[]]}")),
    "just below the bound of brackets": peft(json_text(b'{"a":[' + b"[]," * 100_000 + b"[]]}")),
    "just below the bound of tensors": peft({f"layers.{i}.lora_A.weight": PLAIN for i in range(32_000)}),
    "just below the bound of a GGUF": gguf({}, 32_000),
    "a header of megabytes": peft(json_text(b'{"__metadata__":{"a":"' + b"x" * (9 << 20) + b'"}}')),
    "tensors of a GGUF": gguf({}, 100_000),
    "metadata": gguf({f"k{i}": Typed("u8", 1) for i in range(60_000)}),
    "strings of an array": gguf({}, n_strings=2_000_000),
    "text": gguf({f"k{i}": Typed("str", "x" * (1 << 20)) for i in range(20)}),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> AdapterTarget:
    folder = write_hf(tmp_path_factory.mktemp("base"), CASES["llama"], make_weights(CASES["llama"]))
    base = load(open_model([], folder), ReferenceBackend())
    return AdapterTarget("tiny", base.config, base.decoder.linears)


@pytest.mark.parametrize("attack", ATTACKS)
def test_vast_adapters_are_refused_at_once(attack: str, target: AdapterTarget, tmp_path: Path) -> None:
    path = ATTACKS[attack](tmp_path)
    began = time.process_time()
    with pytest.raises(LoadError) as refusal:
        open_adapter(path, target)
    assert time.process_time() - began < 3  # without the bounds, 25 and more
    assert str(refusal.value).endswith(".") and len(str(refusal.value)) < 500


def test_refusing_takes_little_memory(target: AdapterTarget, tmp_path: Path) -> None:
    path = ATTACKS["200,000 tensors"](tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(LoadError, match="header"):
            open_adapter(path, target)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_the_text_of_a_whole_header_is_bounded(tmp_path: Path) -> None:
    """A sparse file takes no space, and each of its strings 200 MB."""
    head = bytearray(Gguf({}, [], n_metadata=1000).to_bytes())
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(head[:24])
        for i in range(2):
            file.write((2).to_bytes(8, "little") + b"k%d" % i + (8).to_bytes(4, "little"))
            file.write((200 << 20).to_bytes(8, "little"))
            file.seek(200 << 20, 1)
        file.truncate(1 << 33)
    with pytest.raises(CorruptFile, match="bytes of text"):
        open_gguf(path)


# ---- drafters -----------------------------------------------------------------------------------------------------

LAYERS = DRAFTERS["llama"]["transformer_layer_config"]
DRAFTER_CONFIGS: dict[str, dict[str, Any]] = {
    "a vocabulary of 10^30": {"draft_vocab_size": 10**30},
    "a vocabulary as large as may be": {"transformer_layer_config": {**LAYERS, "vocab_size": 1 << 22}},
    "rows as wide as may be": {"target_hidden_size": 1 << 17},
    "layers without end": {"transformer_layer_config": {**LAYERS, "num_hidden_layers": 10**9}},
    "as many layers as may be": {"transformer_layer_config": {**LAYERS, "num_hidden_layers": 1024}},
    "a list of layers without end": {"eagle_aux_hidden_state_layer_ids": list(range(10**5))},
    "a layer of 4,000 digits": {"eagle_aux_hidden_state_layer_ids": [1, 2, 10**4000]},
    "a kind of a megabyte": {"speculators_model_type": "x" * (1 << 20)},
    "layers of a type of a megabyte": {"transformer_layer_config": {**LAYERS, "model_type": "x" * (1 << 20)}},
    "a kind that is an object": {"speculators_model_type": {"eagle3": 1}},
    "lists in lists": {"eagle_aux_hidden_state_layer_ids": [[[[1]]]]},
}


@pytest.mark.parametrize("fields", DRAFTER_CONFIGS.values(), ids=DRAFTER_CONFIGS)
def test_drafters_that_say_too_much(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = write_drafter(tmp_path, DRAFTERS["llama"], make_arrays(DRAFTERS["llama"]))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))
    target: Any = SimpleNamespace(config=SimpleNamespace(width=32, n_vocab=96, n_layers=6), head=None)
    began = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(TahrError) as caught:
            load_drafter(open_model([], path), ReferenceBackend(), target)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1000 and time.perf_counter() - began < 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38, 0.0])
def test_a_drafter_whose_weights_are_no_numbers_changes_no_reply(stories: Path, tmp_path: Path, value: float) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    config = config_for(loaded(stories)[0].decoder)
    arrays = {name: np.full_like(array, value) for name, array in make_arrays(config).items()}
    path = write_drafter(tmp_path / "drafter", config, arrays)
    texts = ["Once upon a time", "The dog"]
    wanted = [each.text for each in LLM(str(stories), context_size=64).generate(texts, params)]
    model = LLM(str(stories), context_size=64, spec_draft=str(path))
    assert [each.text for each in model.generate(texts, params)] == wanted
