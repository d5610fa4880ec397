"""What a hub, a registry or a cache may say that is not so: sentences, and nothing is left behind."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

import fake_hub
from fake_hub import Hub, Registry
from tahr import LLM, hub
from tahr.errors import LoadError, TahrError, UnsupportedModel
from tahr.hub import hf_cache
from tahr.models.loader.runnable import refuse_unsupported
from test_hub import GGUF, SMALL, fake, places, registry, verb

__all__ = ["fake", "places", "registry"]  # fixtures


def gguf_head(architecture: str) -> bytes:
    """The beginning of a GGUF that names its architecture, and more bytes than any small file has."""
    name, key = architecture.encode(), b"general.architecture"
    field = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(name)) + name
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field + os.urandom(1 << 20)


LLAMA_CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
    "intermediate_size": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "wav2vec2"}, "wav2vec2"),
        ({**LLAMA_CONFIG, "quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"model_type": "mistral3"}, "mistral3"),
    ],
)
def test_a_model_that_cannot_run_is_refused_before_its_weights_are_fetched(
    fake: Hub, config: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    large = os.urandom(1 << 20)
    fake.repos["org/m"] = {"config.json": json.dumps(config).encode(), "model.safetensors": large}
    with pytest.raises(LoadError, match=words):
        hub.resolve("org/m", check=refuse_unsupported)
    assert fake.n_body_bytes < 10_000 and hub.list_models() == []
    with pytest.raises(LoadError, match=words):
        LLM("org/m")
    assert verb("doctor", "org/m") == 0
    shown = capsys.readouterr().out
    assert "runs           no: " in shown and words in shown and "1.0 MB" in shown
    assert fake.n_body_bytes < 10_000 and hub.list_models() == []
    fake.repos["org/m"]["config.json"] = json.dumps(LLAMA_CONFIG).encode()
    assert hub.resolve("org/m", check=refuse_unsupported).format == "safetensors"


def test_the_same_for_gguf(fake: Hub, registry: Registry) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": gguf_head("mamba")}
    registry.add("library/m", "latest", {"model": gguf_head("t5")})
    with pytest.raises(UnsupportedModel, match="mamba"):
        hub.resolve("org/m-GGUF", check=refuse_unsupported)
    with pytest.raises(UnsupportedModel, match="t5"):
        hub.resolve("ollama:m", check=refuse_unsupported)
    assert hub.list_models() == [] and fake.n_body_bytes + registry.n_body_bytes < 10_000
    fake.repos["org/n-GGUF"] = {"n-Q4_K_M.gguf": gguf_head("qwen3")}
    assert hub.resolve("org/n-GGUF", check=refuse_unsupported).format == "gguf"


@pytest.mark.parametrize(
    "change",
    [
        {"rfilename": "a\0b.gguf"}, {"rfilename": "x" * 5000 + ".gguf"}, {"rfilename": 3}, {"size": -1},
        {"size": 10**30}, {"size": "many"}, {"blobId": 7}, {"blobId": None},
        {"lfs": {"sha256": "x", "size": -1, "pointerSize": 1}},
    ],
)  # fmt: skip
def test_odd_listings_of_a_hub_get_sentences(
    fake: Hub, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": b"GGUF"}
    sibling = fake_hub._HubHandler.sibling
    monkeypatch.setattr(fake_hub._HubHandler, "sibling", staticmethod(lambda *args: {**sibling(*args), **change}))
    with pytest.raises(TahrError):
        hub.resolve("org/m-GGUF")
    assert hub.list_models() == []


@pytest.mark.parametrize(
    "index",
    [
        *("[" * 100_000, '{"weight_map": 3}', '{"weight_map": {"a": "x\\u0000y"}}', '{"weight_map": {"a": -1}}'),
        *('{"weight_map": {"a": "config.json"}}', '{"weight_map": {"a": ".."}}'),
    ],
)
def test_odd_indexes_get_sentences(fake: Hub, index: str) -> None:
    shard = {"model-00001-of-00001.safetensors": GGUF}
    fake.repos["org/m"] = SMALL | shard | {"model.safetensors.index.json": index.encode()}
    with pytest.raises(TahrError):
        hub.resolve("org/m")
    assert hub.list_models() == []


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": GGUF}, "is an adapter"),
        ({"model.safetensors": GGUF}, "no config.json"),
        ({"m-00001-of-00002.gguf": GGUF}, "does not hold it"),
    ],
)
def test_repositories_without_a_whole_model_are_refused_before_weights_are_fetched(
    fake: Hub, files: dict[str, bytes], sentence: str
) -> None:
    fake.repos["org/m"] = files
    with pytest.raises(TahrError, match=sentence):
        hub.pull("org/m")
    assert fake.n_body_bytes == 0 or sentence == "does not hold it"


def test_a_file_that_calls_itself_none_of_none_is_a_whole_one(fake: Hub, tmp_path: Path) -> None:
    (tmp_path / "m-00000-of-00000.gguf").write_bytes(GGUF)
    assert hub.resolve(str(tmp_path / "m-00000-of-00000.gguf")).weights[0].read_bytes() == GGUF
    fake.repos["org/m"] = {"m-00000-of-00000.gguf": GGUF}
    assert hub.pull("org/m").weights[0].read_bytes() == GGUF


LAYER = "application/vnd.ollama.image.model"


@pytest.mark.parametrize(
    "manifest",
    [
        "[" * 100_000,
        "3",
        '{"layers": 3}',
        '{"layers": [3]}',
        f'{{"layers": [{{"mediaType": "{LAYER}", "digest": "sha256:{"0" * 64}", "size": 1e999}}]}}',
        f'{{"layers": [{{"mediaType": "{LAYER}", "digest": "sha256:{"0" * 64}", "size": -1}}]}}',
        f'{{"layers": [{{"mediaType": "{LAYER}", "digest": "sha256:{"0" * 64}", "size": 1{"0" * 30}}}]}}',
        f'{{"layers": [{{"mediaType": "{LAYER}", "digest": "../../x", "size": 1}}]}}',
    ],
)
def test_odd_manifests_get_sentences(registry: Registry, manifest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.add("library/m", "latest", {"model": GGUF})
    reply = fake_hub._RegistryHandler.reply
    monkeypatch.setattr(
        fake_hub._RegistryHandler,
        "reply",
        lambda self, status, body=b"", **headers: reply(self, status, manifest.encode(), **headers),
    )
    with pytest.raises(TahrError):
        hub.resolve("ollama:m")
    assert hub.list_models() == []


def test_odd_files_in_the_cache_get_sentences(fake: Hub) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}
    files = hub.resolve("org/m-GGUF")
    (hf_cache.Repo("org/m-GGUF").root / "refs" / "main").write_bytes(b"\xff\xfe")
    assert hub.resolve("org/m-GGUF", offline=True).weights == files.weights
    assert len(hub.list_models()) == 1


@pytest.mark.parametrize("state", ["[" * 100_000, '{"size_bytes": 5004, "etag": null, "segments": [[-1, 5004]]}'])
def test_an_odd_state_of_a_download_starts_it_over(fake: Hub, state: str) -> None:
    fake.repos["org/m-GGUF"] = {"m-Q4_K_M.gguf": GGUF}
    blob = hf_cache.Repo("org/m-GGUF").blob(fake_hub.sha256(GGUF))
    blob.parent.mkdir(parents=True)
    blob.with_name(f"{blob.name}.tahr-partial").write_bytes(b"x")
    blob.with_name(f"{blob.name}.tahr-partial.json").write_text(state)
    assert hub.resolve("org/m-GGUF").weights[0].read_bytes() == GGUF


def test_only_the_tokenizer_is_fetched_where_only_it_is_needed(fake: Hub) -> None:
    index = json.dumps({"weight_map": {"a": "model.safetensors"}}).encode()
    fake.repos["org/m"] = SMALL | {"model.safetensors": os.urandom(1 << 20), "model.safetensors.index.json": index}
    directory = hub.tokenizer_directory("org/m", hub.Progress())
    assert directory and (directory / "tokenizer.json").read_bytes() == SMALL["tokenizer.json"]
    assert fake.n_body_bytes < 10_000 and hub.list_models() == []
    n_requests = len(fake.requests)
    assert hub.tokenizer_directory("org/m", hub.Progress()) == directory and len(fake.requests) == n_requests
    fake.repos["org/g-GGUF"] = {"g-Q4_K_M.gguf": gguf_head("llama")}
    assert hub.tokenizer_directory("org/g-GGUF", hub.Progress()) is None
