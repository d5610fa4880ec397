"""Names with a size: their repository where its weights fit, else the quantised file of the same model."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_hub import Hub, own_places, serve_hub
from tahr import hub
from tahr.backends import own_memory
from tahr.cli.main import main
from tahr.errors import ModelNotFound
from tahr.hub.progress import Progress
from tahr.loading.unfit import unfit_for

GGUF = b"GGUF" + os.urandom(5000)
SMALL = {"config.json": b"{}", "tokenizer.json": b'{"model": 1}', "generation_config.json": b"{}"}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    own_places(monkeypatch, tmp_path)
    with serve_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_a_name_with_a_size_is_its_twin_where_its_weights_do_not_fit(fake: Hub) -> None:
    fake.repos["Qwen/Qwen3-8B"] = SMALL | {"model.safetensors": os.urandom(3000)}
    fake.repos["Qwen/Qwen3-8B-GGUF"] = {"Qwen3-8B-Q4_K_M.gguf": GGUF}
    out = io.StringIO()
    seen: list[int] = []

    def unfit(n_bytes: int) -> str:
        seen.append(n_bytes)
        return "they do not fit"

    files = hub.resolve("qwen3:8b", unfit=unfit, progress=Progress(out))
    assert (files.name, files.format, seen) == ("qwen3:8b", "gguf", [16 * 10**9])
    assert "qwen3:8b is Qwen3-8B-Q4_K_M.gguf here: they do not fit" in out.getvalue()
    assert "exact:qwen3:8b takes Qwen/Qwen3-8B" in out.getvalue()
    assert hub.resolve("qwen3:8b", download=False) == files, "what is here is used"
    assert hub.resolve("exact:qwen3:8b", unfit=unfit).format == "safetensors"
    assert hub.resolve("qwen3:8b", unfit=unfit).format == "safetensors", "and the repository before its twin"
    assert len(seen) == 1
    assert hub.remove("qwen3:8b") > 8000, "both"
    with pytest.raises(ModelNotFound):
        hub.resolve("qwen3:8b", download=False)
    assert hub.pull("qwen3:8b", unfit=lambda n_bytes: "").format == "safetensors"


def test_pull_takes_the_twin_unless_it_is_told_to_be_exact(fake: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tahr.loading.unfit.own_memory", lambda backend, n_threads: 0)
    fake.repos["Qwen/Qwen3-4B"] = SMALL | {"model.safetensors": os.urandom(3000)}
    fake.repos["Qwen/Qwen3-4B-GGUF"] = {"Qwen3-4B-Q4_K_M.gguf": GGUF}
    assert main(["pull", "qwen3:4b", "--anyway"]) == 0
    assert [entry.name for entry in hub.list_models()] == ["Qwen/Qwen3-4B-GGUF:Q4_K_M"]
    assert main(["pull", "qwen3:4b", "--exact", "--anyway"]) == 0
    assert len(hub.list_models()) == 2


@pytest.mark.parametrize(
    ("memory_bytes", "reason"), [(0, "no GPU"), (80 * 10**9, ""), (16 * 10**9, "16.0 GB do not fit a GPU of 16.0 GB")]
)
def test_bf16_weights_are_for_gpus_that_hold_them(
    memory_bytes: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tahr.loading.unfit.own_memory", lambda backend, n_threads: memory_bytes)
    said = unfit_for("auto")(16 * 10**9)
    assert reason in said if reason else not said


def test_the_cpu_has_no_memory_of_its_own() -> None:
    assert own_memory("cpu") == own_memory("reference") == 0
