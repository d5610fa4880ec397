"""Models that are loaded on demand and unloaded within a budget, with engines that only pretend."""

import asyncio
import gc
import random
import re
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from pooled_server import ScriptedLoader, pooled, until
from scripted_engine import ByteTokenizer, ScriptedEngine, serving
from tahr.config import SamplingParams
from tahr.engine.sequences.stats import StatsSnapshot
from tahr.errors import ConfigError
from tahr.loading.model_facts import ModelFacts
from tahr.server.lifecycle import HttpServer
from tahr.server.models.registry import ModelRegistry, ServedModel
from tahr.server.observe.throughput_log import ThroughputMark, report, report_throughput
from tahr.server.state.settings import Settings


def test_all_models_are_loaded_at_the_start_without_a_budget() -> None:
    with pooled(budget=None) as pool:
        assert pool.states() == dict.fromkeys("abc", "loaded")
        cards = pool.client.get("/v1/models").json()["data"]
        assert [(card["id"], card["state"], card["context_size"]) for card in cards] == [
            (name, "loaded", 512) for name in "abc"
        ]


def test_the_least_recently_used_model_makes_room() -> None:
    with pooled() as pool:
        assert pool.states() == {"a": "loaded", "b": "unloaded", "c": "unloaded"}
        assert pool.client.get("/v1/models/b").json()["context_size"] is None
        assert pool.ask("b").status_code == 200
        assert pool.ask("a").status_code == 200
        assert pool.ask("c").status_code == 200
        assert pool.states() == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        assert [len(loader.engines) for loader in pool.loaders.values()] == [1, 1, 1]
        text = pool.client.get("/metrics").text
        assert "tahr_model_loads_total 3" in text and "tahr_model_unloads_total 1" in text
        assert "tahr_models_bytes 2000" in text and "tahr_models_warming 2" in text


def test_random_requests_stay_within_the_budget_and_reach_their_model() -> None:
    with pooled(sizes={"a": 700, "b": 900, "c": 1200}) as pool:
        most, ended = [0], threading.Event()

        def watch() -> None:
            while not ended.is_set():
                most[0] = max(most[0], sum(engine.n_bytes for engine in list(pool.memory)))

        def one(i: int) -> None:
            rng = random.Random(i)
            for _ in range(10):
                model, stream = rng.choice("abc"), rng.random() < 0.5
                reply = pool.ask(model, f"{i}", stream=stream)
                assert reply.status_code == 200 and ("[DONE]" in reply.text or not stream), reply.text

        watching = threading.Thread(target=watch)
        watching.start()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(one, range(8)))
        ended.set()
        watching.join()
        assert most[0] <= 2000 and pool.server.state.pool.max_bytes <= 2000
        for name, loader in pool.loaders.items():
            texts = [reply.text for engine in loader.engines for reply in engine.seen[1:]]  # the first warms up
            assert texts and all(f"to {name}:" in text for text in texts)
        assert sum(len(engine.seen) - 1 for each in pool.loaders.values() for engine in each.engines) == 80


def test_requests_that_meet_wait_for_one_load() -> None:
    with pooled() as pool:
        pool.loaders["b"].delay_s = 0.2
        with ThreadPoolExecutor(6) as threads:
            assert {reply.status_code for reply in threads.map(pool.ask, "bbbbbb")} == {200}
        assert len(pool.loaders["b"].engines) == 1


def test_a_failed_load_is_an_error_for_those_who_asked() -> None:
    with pooled() as pool:
        pool.loaders["b"].fails, pool.loaders["b"].delay_s = 1, 0.2
        with ThreadPoolExecutor(3) as threads:
            replies = list(threads.map(pool.ask, "bba"))
        assert [reply.status_code for reply in replies] == [503, 503, 200]
        error = replies[0].json()["error"]
        assert error["code"] == "model_load_failed" and "The script has no weights." in error["message"]
        assert pool.ask("b").status_code == 200  # and the next one is tried again
        assert pool.server.state.pool.n_failures == 1


def test_a_model_larger_than_its_files_promised_finds_room_or_is_refused() -> None:
    with pooled(sizes={"a": 1000, "b": 1000, "c": 1500}) as pool:
        pool.loaders["b"].guess = 0
        assert pool.ask("b").status_code == 200
        pool.loaders["c"].guess = 10
        assert pool.ask("c").status_code == 200
        assert pool.states() == {"a": "unloaded", "b": "unloaded", "c": "loaded"}
        pool.loaders["a"].size = 5000
        pool.server.state.models.models[0].n_bytes = None
        pool.loaders["a"].guess = 1000
        refused = pool.ask("a")
        assert refused.status_code == 503 and "raise --models-budget" in refused.json()["error"]["message"]
        assert [engine.name for engine in pool.memory] == []
        assert pool.ask("b").status_code == 200


def test_a_server_does_not_start_with_a_model_that_can_never_fit() -> None:
    models = [
        ServedModel((name,), loader=ScriptedLoader(name, [], size)) for name, size in (("a", 1), ("b", 9_000_000))
    ]
    server = HttpServer(Settings(port=0, models_budget_bytes=2_000_000), lambda: models, lambda *_: None)
    with pytest.raises(ConfigError, match="The model b needs 9 MB, but all models may take 2 MB"):
        server.run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the process goes on as before"


def test_unloading_waits_for_running_requests_and_later_ones_for_the_next_load() -> None:
    with pooled() as pool, ThreadPoolExecutor(3) as threads:
        running = threads.submit(pool.ask, "a", "SLOW", max_tokens=30)
        until(lambda: bool(pool.loaders["a"].engines[0].live))
        unloading = threads.submit(pool.post, "unload", model="a")
        until(lambda: pool.states()["a"] == "unloading")
        assert pool.ask("a", "later").status_code == 200
        assert running.result().status_code == 200 and unloading.result().status_code == 200
        assert [len(engine.seen) - 1 for engine in pool.loaders["a"].engines] == [1, 1]
        assert pool.post("unload", model="a").json()["state"] == "unloaded"
        assert pool.post("unload", model="a").json()["state"] == "unloaded"  # nothing is left to do


def test_a_busy_model_gives_way_to_one_that_waits() -> None:
    """Requests that never cease must not keep the memory for ever."""
    with pooled(budget=1000) as pool:
        ended = threading.Event()

        def insist() -> int:
            n = 0
            while not ended.is_set():
                assert pool.ask("a", "SLOW", max_tokens=5).status_code == 200
                n += 1
            return n

        with ThreadPoolExecutor(3) as threads:
            busy = [threads.submit(insist) for _ in range(2)]
            until(lambda: bool(pool.loaders["a"].engines[0].live))
            assert pool.ask("b").status_code == 200
            ended.set()
            assert all(each.result() for each in busy)


def test_a_model_without_requests_is_unloaded_after_a_while() -> None:
    with pooled(model_keep_alive_s=0.1) as pool:
        until(lambda: pool.states()["a"] == "unloaded")
        assert pool.ask("a").status_code == 200
        until(lambda: pool.states()["a"] == "unloaded")
        entry = pool.post("load", model="a", keep_alive=-1).json()
        assert entry["state"] == "loaded" and entry["keep_alive_s"] is None and entry["expires_in_s"] is None
        time.sleep(0.2)
        assert pool.states()["a"] == "loaded"
        pool.post("load", model="a", keep_alive=0)
        until(lambda: pool.states()["a"] == "unloaded")


def test_a_client_that_leaves_while_its_model_is_loaded_harms_nobody() -> None:
    with pooled() as pool:
        pool.loaders["b"].delay_s = 0.3
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(pool.server.address + "/v1/completions", json={"model": "b", "prompt": "x"}, timeout=0.1)
        until(lambda: pool.states()["b"] == "loaded")
        model = pool.server.state.models.models[1]
        assert not model.users and not model.waiting
        assert pool.ask("b").status_code == 200


def test_waiting_for_a_load_counts_against_the_limits() -> None:
    with pooled(max_requests=2, request_timeout_s=0.2) as pool:
        pool.loaders["b"].delay_s = 0.5
        with ThreadPoolExecutor(3) as threads:
            codes = sorted(reply.json()["error"]["code"] for reply in threads.map(pool.ask, "bbb"))
        assert codes == ["overloaded", "timeout", "timeout"]


def test_adapters_that_were_added_come_back_with_their_model() -> None:
    with pooled(budget=1000) as pool:
        assert pool.client.post("/admin/loras", json={"name": "x", "path": "p", "model": "a"}).status_code == 200
        assert pool.ask("b").status_code == 200
        assert pool.ask("a:x").status_code == 200
        assert [each.name for each in pool.loaders["a"].engines[1].adapters()] == ["x"]


def test_a_list_of_models_in_memory_loads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is unloaded while its files are read for the list is left out of it."""
    mark, unloaded, facts = threading.Event(), threading.Event(), ScriptedLoader.facts

    def slow(loader: ScriptedLoader) -> ModelFacts:
        mark.set()
        assert unloaded.wait(10)
        return facts(loader)

    with pooled(budget=1000) as pool, ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(ScriptedLoader, "facts", slow)
        listing = threads.submit(pool.client.get, "/api/ps")
        assert mark.wait(10) and pool.post("unload", model="a").status_code == 200
        unloaded.set()
        assert listing.result().json() == {"models": []} and pool.states()["a"] == "unloaded"


def test_a_server_that_is_stopped_while_it_loads_ends() -> None:
    with ThreadPoolExecutor(1) as threads:
        with pooled(drain_timeout_s=0.1) as pool:
            pool.loaders["b"].delay_s = 1.0
            waiting = threads.submit(pool.ask, "b")
            until(lambda: pool.states()["b"] == "loading")
        assert waiting.result(5).json()["error"]["code"] == "closing"


HALF = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_server_that_is_stopped_at_its_start_neither_fails_nor_opens(
    names: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while a client holds up the end with half a body, which is refused in time."""
    memory: list[ScriptedEngine] = []
    models = [ServedModel((name,), loader=ScriptedLoader(name, memory, delay_s=0.3)) for name in names]
    opened: list[str] = []
    settings = Settings(port=0, log_interval_s=0, drain_timeout_s=1)
    server = HttpServer(settings, lambda: models, lambda address, _: opened.append(address))

    async def main() -> tuple[int, bytes]:
        serving = asyncio.create_task(server.serve())
        while not models[0].load_task:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*server.address.removeprefix("http://").split(":"))
        writer.write(HALF)
        await asyncio.sleep(0.1)
        server.drain()
        reply = await asyncio.wait_for(reader.read(), 1.5)
        writer.close()
        return await serving, reply

    code, reply = asyncio.run(main())
    assert code == 0 and not opened and not memory
    assert reply.startswith(b"HTTP/1.1 503") and b'"closing"' in reply
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


class LateEngine(ScriptedEngine):
    """Adds adapters for longer than any grace."""

    async def add_adapter(self, name: str, path: str, scale: float, replaces: bool = False) -> Any:
        await asyncio.sleep(30)


def test_what_outlasts_the_grace_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(1) as threads:
        with serving(LateEngine(), settings=Settings(port=0, log_interval_s=0, drain_timeout_s=0)) as server:
            body = {"name": "x", "path": "x"}
            waiting = threads.submit(httpx.post, f"{server.address}/admin/loras", json=body, timeout=10)
            until(lambda: bool(server.state.models.models[0].users))
        assert waiting.result(5).json()["error"]["code"] == "closing"
    assert not [each for each in caplog.records if each.exc_info]


class SlowTokenizer(ByteTokenizer):
    def encode(self, text: str, **options: Any) -> list[int]:
        time.sleep(0.8)
        return super().encode(text, **options)


class SlowTextLoader(ScriptedLoader):
    def load(self) -> ScriptedEngine:
        engine = super().load()
        engine.tokenizer = SlowTokenizer()
        return engine


def test_a_deadline_that_passes_between_the_load_and_the_first_step_counts() -> None:
    loader = SlowTextLoader("b", [], delay_s=0.1)
    models = [ServedModel(("a",), ScriptedEngine("a")), ServedModel(("b",), loader=loader, on_demand=True)]
    settings = Settings(port=0, log_interval_s=0, request_timeout_s=0.5, session_cache="memory")
    with serving(settings=settings, load=lambda: models) as server:
        until(lambda: httpx.get(f"{server.address}/ready").status_code == 200)
        body = {"model": "b", "prompt": "HANG@1"}
        assert httpx.post(f"{server.address}/v1/completions", json=body, timeout=5).status_code == 504


def test_times_of_requests_begin_when_they_arrive() -> None:
    with pooled() as pool:
        pool.loaders["b"].delay_s = 0.4
        assert pool.ask("b").status_code == 200
        text = pool.client.get("/metrics").text
    for name in ("time_to_first_token", "request"):
        found = re.search(rf'tahr_{name}_seconds_sum{{model_name="b"}} (\S+)', text)
        assert found and 0.4 < float(found[1]) < 5


def test_a_model_that_is_deleted_is_not_loaded_for_one_who_found_it_before() -> None:
    memory: list[ScriptedEngine] = []
    b = ServedModel(("b",), loader=SlowTextLoader("b", memory), on_demand=True)
    settings = Settings(port=0, log_interval_s=0, session_cache="memory")
    with (
        serving(settings=settings, load=lambda: [ServedModel(("a",), ScriptedEngine("a")), b]) as server,
        httpx.Client(base_url=server.address, timeout=10) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        until(lambda: client.get("/ready").status_code == 200)
        client.post("/admin/models/load", json={"model": "b"})
        asking = threads.submit(client.post, "/v1/completions", json={"model": "b", "prompt": "hi"})
        time.sleep(0.3)
        assert client.request("DELETE", "/api/delete", json={"model": "b"}).status_code == 200
        assert asking.result().json()["error"]["code"] == "model_not_found"
        assert not memory and not b.loaded_engine


def test_memory_is_counted_while_one_load_follows_another() -> None:
    with pooled(budget=3000) as pool, ThreadPoolExecutor(2) as threads:
        for name in "bc":
            pool.ask(name)
            pool.post("unload", model=name)
            pool.loaders[name].delay_s = 0.5
        loads = [threads.submit(pool.ask, name) for name in "bc"]
        until(lambda: sorted(pool.states().values()) == ["loaded", "loaded", "loading"])
        time.sleep(0.1)
        assert pool.client.get("/admin/models").json()["n_bytes"] == 3000
        assert [each.result().status_code for each in loads] == [200, 200]


def test_a_model_that_is_not_loaded_does_not_expire() -> None:
    with pooled(model_keep_alive_s=100) as pool:
        pool.ask("b")
        assert pool.post("unload", model="b").json()["expires_in_s"] is None


def test_requests_of_models_that_are_unloaded_still_count() -> None:
    with pooled() as pool:
        pool.ask("b")
        counts = StatsSnapshot(requests_started=9, requests_completed=4, requests_failed=3, requests_cancelled=2)
        pool.loaders["b"].engines[0].stats = counts
        for _ in range(2):
            told = pool.client.get("/health").json()["scheduler"]
            found = [told[f"{name}_requests"] for name in ("total", "successful", "failed", "cancelled")]
            assert found == [9, 4, 3, 2]
            pool.post("unload", model="b")


def test_throughput_of_a_model_that_is_loaded_again(caplog: pytest.LogCaptureFixture) -> None:
    engines = [ScriptedEngine("a"), ScriptedEngine("a")]
    model = ServedModel(("a",), engines[0])
    models = ModelRegistry(SamplingParams())
    models.put([model])

    async def main() -> None:
        reporting = asyncio.create_task(report_throughput(models, 0.05))
        for engine, counts in ((0, (1, 1)), (0, (100, 1000)), (1, (3, 2)), (1, (4, 7))):
            model.loaded_engine = engines[engine]
            engines[engine].stats = StatsSnapshot(tokens_prefilled=counts[0], tokens_generated=counts[1])
            await asyncio.sleep(0.12)
        reporting.cancel()

    with caplog.at_level("INFO", "tahr.server"):
        asyncio.run(main())
    found = [re.findall(r"tokens_per_s=(\S+)", each.getMessage()) for each in caplog.records]
    ratios = [float(generated) / float(prompt) for prompt, generated in found]
    assert ratios == pytest.approx([999 / 99, 5 / 1], rel=0.05)


def test_a_step_that_outlasts_intervals_is_spread_over_them(caplog: pytest.LogCaptureFixture) -> None:
    def at(time_s: float, n_tokens: int, n_running: int, before: ThroughputMark | None) -> ThroughputMark:
        return report("a", StatsSnapshot(tokens_prefilled=n_tokens, requests_running=n_running), before, time_s)

    with caplog.at_level("INFO", "tahr.server"):
        mark = at(0, 100, 0, None)
        for time_s in (5, 10, 15):
            mark = at(time_s, 100, 1, mark)  # arrived after 0, in one step since then
        mark = at(20, 2100, 1, mark)
        for time_s in (25, 30):
            mark = at(time_s, 2100, 0, mark)
        at(35, 2150, 1, mark)
    found = [re.findall(r"prompt_tokens_per_s=(\S+)", each.getMessage()) for each in caplog.records]
    assert found == [["133.3"], ["10.0"]], "and not over the time without requests"


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "x" * 1_000_000, "", "\0", "smollm2:135m"])
def test_only_named_models_are_ever_loaded(name: str) -> None:
    with pooled() as pool:
        for path in ("load", "unload"):
            reply = pool.post(path, model=name)
            if name:  # none named: the first
                assert reply.status_code == 404 and len(reply.text) < 1000
        assert pool.ask(name).status_code == (404 if name else 200)
        assert {engine.name for engine in pool.memory} == {"a"} or not name


def test_unloading_frees_what_only_the_collector_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled request may hold an engine in a circle. Nothing is frozen after the start, or it would stay."""
    with pooled() as pool:
        frozen: list[int] = []
        monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
        assert pool.ask("b").status_code == 200 and not frozen
        engine = pool.loaders["b"].engines.pop()
        engine.scripts.append(engine)  # type: ignore[arg-type]
        left = weakref.ref(engine)
        del engine
        gc.disable()
        try:
            assert pool.post("unload", model="b").status_code == 200
            assert left() is None
        finally:
            gc.enable()
