"""Adapters over HTTP: as models, by field, added and removed while the server runs, and by whom."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import assets
from engines import here
from lora_files import peft_tensors, write_peft
from scripted_engine import ScriptedEngine, serving
from tahr import LLM, AsyncLLM, SamplingParams
from tahr.config import EngineConfig
from tahr.models.loader.load import load, open_model
from tahr.models.lora import open_adapter
from tahr.server.http.guard import is_loopback
from tahr.server.models.llm_engine import LlmEngine
from tahr.server.models.loading import ModelChoice, served_models
from tahr.server.state.settings import Settings

GREEDY = {"temperature": 0, "max_tokens": 12}
PROMPT = {"prompt": "Once upon a time", **GREEDY}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `plus` and `minus`, of opposite sign, and `other`, for another model."""
    folder = tmp_path_factory.mktemp("adapters")
    linears = load(open_model([assets.stories()]), here()).decoder.linears
    layers = {name: shape for name, shape in linears.items() if name != "lm_head"}
    for name, strength in (("plus", 0.5), ("minus", -0.5)):
        write_peft(folder / name, peft_tensors(layers, 4, seed=3, strength=strength), r=4)
    write_peft(folder / "other", peft_tensors(dict(list(linears.items())[:3]), 8, seed=3), r=4)
    return folder


@contextmanager
def real_server(*loras: str, **settings: Any) -> Iterator[str]:
    engine = LlmEngine(AsyncLLM(str(assets.stories()), loras=loras, n_threads=2, context_size=256))
    with serving(engine, settings=Settings(port=0, log_interval_s=0, **settings)) as server:
        yield server.address


def text(address: str, **body: Any) -> str:
    reply = httpx.post(f"{address}/v1/completions", json={**PROMPT, **body}, timeout=60)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def test_adapters_are_models_and_fields(adapters: Path) -> None:
    """Opposite adapters say different things; the base says what it says without any loaded."""
    with LLM(str(assets.stories()), n_threads=2, context_size=256) as llm:
        base = llm.generate(PROMPT["prompt"], SamplingParams(**GREEDY)).text  # type: ignore[call-overload]
    with real_server(f"plus={adapters / 'plus'}", f"minus={adapters / 'minus'},0.5") as address:
        listed = httpx.get(f"{address}/v1/models").json()["data"]
        name = next(card["id"] for card in listed if card["parent"] is None)
        assert {card["id"]: (card["root"], card["parent"]) for card in listed} == {
            name: (name, None), f"{name}:plus": (name, name), f"{name}:minus": (name, name)}  # fmt: skip
        assert httpx.get(f"{address}/v1/models/{name}:plus").json()["root"] == name
        plus, minus = text(address, model=f"{name}:plus"), text(address, model=f"{name}:minus")
        assert text(address) == text(address, model=name) == base
        assert len({base, plus, minus}) == 3
        for same in ("plus", ["plus"], [{"name": "plus"}], [{"name": "plus", "scale": 1}]):
            assert text(address, lora=same) == plus
        assert text(address, lora=[{"name": "minus", "scale": 0.5}]) == minus, "the scale of the option"
        assert text(address, lora=[{"name": "plus", "scale": 0}]) == base
        assert text(address, lora=["plus", {"name": "minus", "scale": 1}]) == base, "they cancel out"
        chat = {"messages": [{"role": "user", "content": "Hi"}], "model": f"{name}:plus", **GREEDY}
        assert httpx.post(f"{address}/tokenize", json={"model": f"{name}:plus", "prompt": "Hi"}).status_code == 200
        assert httpx.post(f"{address}/v1/chat/completions", json=chat).status_code in (200, 400)  # it has no template
        vectors = [
            httpx.post(f"{address}/v1/embeddings", json={"input": "Hi", "model": model}).json()["data"][0]["embedding"]
            for model in (name, f"{name}:plus", name)
        ]
        assert vectors[0] == vectors[2] != vectors[1]
        assert httpx.get(f"{address}/health").json()["lora"]["adapters"] == 2


@pytest.mark.serial
def test_adding_and_removing_under_load(adapters: Path) -> None:
    """Requests go on, none fails, and none waits longer than a load and a step."""
    with real_server() as address:
        wanted = text(address)
        stop, texts, slowest = threading.Event(), list[str](), [0.0]

        def drive() -> None:
            while not stop.is_set():
                began = time.perf_counter()
                texts.append(text(address))
                slowest[0] = max(slowest[0], time.perf_counter() - began)

        threads = [threading.Thread(target=drive) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            seen = set()
            for i in range(3):
                body = {"name": f"a{i}", "path": str(adapters / "plus")}
                added = httpx.post(f"{address}/admin/loras", json=body)
                assert added.status_code == 200 and added.json()["rank"] == 4
                seen.add(text(address, lora=f"a{i}"))
                assert httpx.delete(f"{address}/admin/loras/a{i}").status_code == 200
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert set(texts) == {wanted} and len(texts) > 3 and len(seen) == 1 and wanted not in seen
        assert slowest[0] < 10


def test_requests_go_on_while_an_adapter_is_read(adapters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes: here, until the replies are there."""
    reading, replied = threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        reading.set()
        assert replied.wait(30)
        return open_adapter(*args)

    monkeypatch.setattr("tahr.executor.adapters.open_adapter", slow)
    with real_server() as address, ThreadPoolExecutor(1) as pool:
        body = {"name": "a", "path": str(adapters / "plus")}
        adding = pool.submit(httpx.post, f"{address}/admin/loras", json=body, timeout=60)
        assert reading.wait(30)
        assert text(address) == text(address) != "" and not adding.done()
        replied.set()
        assert adding.result().status_code == 200 and text(address, lora="a") != text(address)


def test_the_registry_over_http(adapters: Path) -> None:
    with real_server() as address:
        path = str(adapters / "plus")
        post = lambda route, **body: httpx.post(address + route, json=body, timeout=30)  # noqa: E731
        made = post("/admin/loras", name="plus", path=path, scale=0.5).json()
        assert made["name"] == "plus" and made["scale"] == 0.5 and made["id"].endswith(":plus") and made["digest"]
        assert httpx.get(f"{address}/admin/loras").json()["data"] == [made]
        assert post("/admin/loras", name="plus", path=path).status_code == 400, "it is there already"
        assert post("/v1/load_lora_adapter", lora_name="plus", lora_path=path).status_code == 400
        assert post("/v1/load_lora_adapter", lora_name="plus", lora_path=path, load_inplace=True).status_code == 200
        assert httpx.get(f"{address}/admin/loras").json()["data"][0]["scale"] == 1
        assert post("/v1/unload_lora_adapter", lora_name="plus").status_code == 200
        assert post("/v1/unload_lora_adapter", lora_name="plus").status_code == 404
        assert httpx.delete(f"{address}/admin/loras/plus").status_code == 404
        assert httpx.get(f"{address}/admin/loras").json()["data"] == []
        for name, where in (("x", "nowhere"), ("x", "other"), ("../x", "plus"), ("a:b", "plus"), ("", "plus")):
            refused = post("/admin/loras", name=name, path=str(adapters / where))
            assert refused.status_code == 400 and refused.json()["error"]["message"].endswith("."), refused.text
        for odd in ("\0", "a\0b", "x" * 5000, "x" * 300 + "/adapter_config.json", "~nobody-here/x"):
            refused = post("/admin/loras", name="x", path=odd)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "path", refused.text
            assert refused.json()["error"]["message"].endswith("."), refused.text
        assert post("/admin/loras", name="x", path=path, scale=1e9).status_code == 400
        assert httpx.put(f"{address}/admin/loras", json={}).headers["allow"] == "POST, GET"
        text(address)


def test_what_cannot_replace_an_adapter_leaves_it(adapters: Path) -> None:
    with real_server() as address:
        body = {"lora_name": "plus", "lora_path": str(adapters / "plus"), "load_inplace": True}
        assert httpx.post(f"{address}/v1/load_lora_adapter", json=body, timeout=30).status_code == 200
        refused = httpx.post(f"{address}/v1/load_lora_adapter", json={**body, "lora_path": "nowhere"}, timeout=30)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "lora_path"
        assert [each["path"] for each in httpx.get(f"{address}/admin/loras").json()["data"]] == [body["lora_path"]]
        assert httpx.post(f"{address}/v1/load_lora_adapter", json=body, timeout=30).status_code == 200


def test_what_became_of_adapters_outlives_an_unload(adapters: Path) -> None:
    """Adapters that were removed stay away and those that were replaced stay replaced; they can go while it is away."""
    started = tuple(f"{name}={adapters / 'plus'}" for name in ("gone", "other"))
    config = EngineConfig(loras=started, n_threads=2, context_size=256)
    choice = ModelChoice(str(assets.stories()), name="a", config=config)
    settings = Settings(port=0, log_interval_s=0)
    with serving(settings=settings, load=lambda: served_models([choice])) as server:
        address = server.address
        with httpx.Client(base_url=address, timeout=60) as client:
            while client.get("/ready").status_code != 200:
                time.sleep(0.01)
            assert client.delete("/admin/loras/gone").status_code == 200
            body = {"lora_name": "other", "lora_path": str(adapters / "minus"), "load_inplace": True}
            assert client.post("/v1/load_lora_adapter", json=body).status_code == 200
            replaced = text(address, model="a:other")
            assert client.post("/admin/models/unload", json={"model": "a"}).status_code == 200
            assert text(address, model="a:other") == replaced != text(address)
            assert [each["name"] for each in client.get("/admin/loras").json()["data"]] == ["other"]
            assert client.post("/admin/models/unload", json={"model": "a"}).status_code == 200
            assert client.delete("/admin/loras/a:other").status_code == 200
            assert client.post("/admin/models/unload", json={"model": "a"}).status_code == 200
            assert client.post("/v1/completions", json={**PROMPT, "model": "a:other"}).status_code == 400


def test_adapters_change_while_their_model_is_unloaded(adapters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes while the engine closes waits, and changes the next one."""
    closing, close = threading.Event(), LlmEngine.close

    async def slow(engine: LlmEngine) -> None:
        await close(engine)
        closing.set()
        await asyncio.sleep(0.2)

    monkeypatch.setattr(LlmEngine, "close", slow)
    config = EngineConfig(n_threads=2, context_size=256)
    choice = ModelChoice(str(assets.stories()), name="a", config=config)
    with (
        serving(settings=Settings(port=0, log_interval_s=0), load=lambda: served_models([choice])) as server,
        httpx.Client(base_url=server.address, timeout=60) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        while client.get("/ready").status_code != 200:
            time.sleep(0.01)
        body = {"name": "x", "path": str(adapters / "plus")}
        for change in (lambda: client.post("/admin/loras", json=body), lambda: client.delete("/admin/loras/x")):
            closing.clear()
            unloading = threads.submit(client.post, "/admin/models/unload", json={"model": "a"})
            assert closing.wait(10)
            made = change()
            assert made.status_code == 200, made.text
            assert unloading.result().status_code == 200
        assert client.get("/admin/loras").json()["data"] == []


def test_an_adapter_of_another_model_is_not_replaced() -> None:
    first, second = ScriptedEngine("first"), ScriptedEngine("second")
    with serving(first, second) as server:
        for name in ("first", "second", "second"):
            body = {"lora_name": "a", "lora_path": name, "base_model_name": name, "load_inplace": True}
            assert httpx.post(f"{server.address}/v1/load_lora_adapter", json=body).status_code == 200
        assert first.loaded["a"].path == "first" and second.loaded["a"].path == "second"
        both = httpx.post(f"{server.address}/v1/completions", json={**PROMPT, "model": "a"})
        assert both.status_code == 404, "of which model is not said"


def test_an_adapter_alone_is_a_model_as_with_vllm(adapters: Path) -> None:
    with real_server() as address:
        body = {"lora_name": "plus", "lora_path": str(adapters / "plus")}
        assert httpx.post(f"{address}/v1/load_lora_adapter", json=body, timeout=30).status_code == 200
        assert text(address, model="plus") == text(address, lora="plus") != text(address)
        twice = httpx.post(f"{address}/v1/completions", json={**PROMPT, "model": "plus", "lora": "plus"})
        assert twice.status_code == 400 and twice.json()["error"]["param"] == "lora"
        assert httpx.post(f"{address}/v1/unload_lora_adapter", json={"lora_name": "plus"}).status_code == 200
        assert httpx.post(f"{address}/v1/completions", json={**PROMPT, "model": "plus"}).status_code == 404


UNKNOWN = [
    ({"model": "scripted:nobody"}, "model", 400),
    ({"model": "nobody:a"}, "model", 404),
    ({"lora": "nobody"}, "lora", 400),
    ({"lora": [{"name": "a"}, {"name": "nobody", "scale": 2}]}, "lora", 400),
    ({"lora": "a", "model": "scripted:a"}, "lora", 400),
    ({"lora": [{"name": "a", "scale": 1e9}]}, "lora", 400),
    ({"lora": [{"scale": 1}]}, "lora[0]", 400),
    ({"lora": 7}, "lora", 400),
]


@pytest.mark.parametrize(("body", "param", "status"), UNKNOWN)
def test_unknown_adapters_are_refused_by_field(body: dict[str, Any], param: str, status: int) -> None:
    with serving(ScriptedEngine()) as server:
        assert httpx.post(f"{server.address}/admin/loras", json={"name": "a", "path": "fine"}).status_code == 200
        for route, more in (("completions", {"prompt": "x"}), ("chat/completions", {"messages": [{"role": "user"}]})):
            reply = httpx.post(f"{server.address}/v1/{route}", json={**more, **body})
            assert reply.status_code == status, reply.text
            assert param in reply.json()["error"]["param"]


def test_requests_carry_their_adapters() -> None:
    engine = ScriptedEngine()
    with serving(engine) as server:
        httpx.post(f"{server.address}/admin/loras", json={"name": "a", "path": "fine"})
        for body in ({"model": "scripted:a"}, {"lora": "a"}, {"lora": [{"name": "a", "scale": 2}]}, {}):
            reply = httpx.post(f"{server.address}/v1/completions", json={"prompt": "x", **body})
            assert reply.json()["model"] == body.get("model", "scripted")
    assert [seen.params.lora for seen in engine.seen[-4:]] == [(("a", None),), (("a", None),), (("a", 2),), ()]


# ---- who may ------------------------------------------------------------------------------------------------

ADMIN = [("POST", "/admin/loras"), ("GET", "/admin/loras"), ("DELETE", "/admin/loras/x"),
         ("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter")]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ADMIN)
def test_the_admin_key_is_asked_for(method: str, path: str) -> None:
    with serving(ScriptedEngine(), settings=Settings(port=0, api_keys=("user",), admin_key="root")) as server:
        for key, allowed in (("", False), ("user", False), ("root", True)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            status = httpx.request(method, server.address + path, headers=headers, content=b"{}").status_code
            assert (status != 401) is allowed
        wrong = httpx.get(f"{server.address}/v1/models", headers={"authorization": "Bearer root"})
        assert wrong.status_code == 401, "the admin's key is no client's key"


@pytest.mark.parametrize(("method", "path"), ADMIN)
def test_without_an_admin_key_only_this_machine_may(method: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(ScriptedEngine(), settings=Settings(port=0, api_keys=("user",))) as server:
        for key, status in (("", 401), ("user", None)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            found = httpx.request(method, server.address + path, headers=headers, content=b"{}").status_code
            assert found == status or (status is None and found not in (401, 403))
        monkeypatch.setattr("tahr.server.http.guard.is_loopback", lambda client: False)
        away = httpx.request(method, server.address + path, headers={"authorization": "Bearer user"}, content=b"{}")
        assert away.status_code == 403 and "admin" in away.json()["error"]["message"]


def test_which_clients_are_on_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("", "10.0.0.1", "::ffff:10.0.0.1", "8.8.8.8", "localhost.evil", "fe80::1%eth0")))
