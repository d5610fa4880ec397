"""/api/pull against a registry and a hub on this machine: what is fetched is told while it comes, and then served."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fake_hub import Hub, Registry, own_places, serve_hub, serve_registry
from scripted_engine import ScriptedEngine, serving
from tahr import hub
from tahr.config import EngineConfig
from tahr.hub import transfer
from tahr.server.lifecycle import HttpServer
from tahr.server.models.loading import LoadOptions, ModelChoice, served_model
from tahr.server.models.registry import ServedModel
from tahr.server.ollama.pull import MAX_PULLS

CONFIG = EngineConfig(n_threads=1, context_size=64, max_batch_size=1)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_places(monkeypatch, tmp_path)
    monkeypatch.setattr(transfer, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1 << 16)


@pytest.fixture
def registry(stories: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with serve_registry() as made:
        monkeypatch.setenv("TAHR_OLLAMA_REGISTRY", made.url)
        made.add("library/tale", "latest", {"model": stories.read_bytes()})
        yield made


@pytest.fixture
def fake_hub(stories: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        made.repos["org/tale-GGUF"] = {"tale-Q8_0.gguf": stories.read_bytes()}
        yield made


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    """Of a server that makes models of what it fetches, as `tahr serve` does."""

    def make(name: str, source: str) -> ServedModel:
        made = served_model(ModelChoice(source, name, config=CONFIG), LoadOptions())
        made.on_demand = True
        return made

    def running() -> Iterator[HttpServer]:
        with serving(ScriptedEngine("story"), make_model=make) as server:
            yield server

    for server in running():
        with httpx.Client(base_url=server.address, timeout=30) as made:
            yield made


def names(client: httpx.Client) -> list[str]:
    return [each["name"] for each in client.get("/api/tags").json()["models"]]


def continued(client: httpx.Client, model: str) -> dict[str, Any]:
    body = {"model": model, "prompt": "Once upon a time", "raw": True, "stream": False, "options": {"num_predict": 3}}
    reply = client.post("/api/generate", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_a_pull_tells_how_far_it_is_and_the_model_answers(client: httpx.Client, registry: Registry) -> None:
    registry.stall_at = 300_000
    seen: list[dict[str, Any]] = []
    with client.stream("POST", "/api/pull", json={"model": "tale:latest"}) as reply:
        assert reply.headers["content-type"] == "application/x-ndjson"
        for line in reply.iter_lines():
            seen.append(json.loads(line))
            if seen[-1].get("completed"):  # the download hangs: it is shown where
                registry.stall_at = None
                registry.release.set()
    n_bytes = len(next(iter(registry.blobs.values())))
    stalled = next(each for each in seen if each.get("completed"))
    assert stalled["status"].startswith("pulling ") and stalled["total"] == n_bytes
    assert 0 < stalled["completed"] <= 300_000
    assert [each for each in seen if each["status"] == "success"] == seen[-1:] == [{"status": "success"}]
    assert "tale:latest" in names(client)
    made = continued(client, "tale")
    assert made["eval_count"] == 3 and made["response"] and made["load_duration"] > 0


def test_a_whole_reply_and_a_model_of_the_hub(client: httpx.Client, fake_hub: Hub) -> None:
    name = "hf.co/org/tale-GGUF"
    reply = client.post("/api/pull", json={"name": name, "stream": False})
    assert (reply.status_code, reply.json()) == (200, {"status": "success"})
    assert continued(client, name)["eval_count"] == 3
    assert client.request("DELETE", "/api/delete", json={"model": name}).status_code == 200
    assert f"{name}:latest" not in names(client)
    with pytest.raises(hub.ModelNotFound):
        hub.resolve("org/tale-GGUF", download=False)


def test_what_is_not_there_or_damaged_is_an_error_and_no_model(client: httpx.Client, registry: Registry) -> None:
    reply = client.post("/api/pull", json={"model": "none", "stream": False})
    assert reply.status_code == 404 and "none" in reply.json()["error"]
    registry.damage = b"????"
    lines = [json.loads(line) for line in client.post("/api/pull", json={"model": "tale"}).text.splitlines()]
    assert lines[-1].keys() == {"error"} and {"status": "success"} not in lines
    assert names(client) == ["story:latest"]


def test_only_so_many_pulls_at_once_and_one_goes_on_without_its_client(
    client: httpx.Client, registry: Registry
) -> None:
    registry.stall_at = 1000

    def leave_early() -> None:
        with client.stream("POST", "/api/pull", json={"model": "tale"}) as reply:
            next(reply.iter_lines())

    followers = [threading.Thread(target=leave_early) for _ in range(MAX_PULLS)]
    for each in followers:
        each.start()
    for each in followers:
        each.join()
    assert registry.stalled.wait(10)
    assert client.post("/api/pull", json={"model": "tale"}).status_code == 429
    registry.stall_at = None
    registry.release.set()
    reply = client.post("/api/pull", json={"model": "tale", "stream": False})
    while reply.status_code == 429:
        reply = client.post("/api/pull", json={"model": "tale", "stream": False})
    assert reply.json() == {"status": "success"} and continued(client, "tale")["eval_count"] == 3
