"""Models of a server that sleep: after a time or by hand, woken by whoever needs them."""

import threading
from typing import Any

import httpx
import pytest

from pooled_server import PooledServer, pooled, until
from scripted_engine import ScriptedEngine, serving
from tahr.server.state.settings import Settings

QUIET = {"port": 0, "log_interval_s": 0}


def is_sleeping(server: PooledServer, **query: str) -> Any:
    return server.client.get("/is_sleeping", params=query).json()["is_sleeping"]


def test_an_idle_model_sleeps_and_a_request_wakes_it() -> None:
    with pooled(sizes={"a": 1000}, sleep_after_s=0.05) as server:
        (engine,) = server.loaders["a"].engines
        until(lambda: engine.asleep)
        assert server.states() == {"a": "asleep"} and is_sleeping(server)
        assert server.client.get("/health").status_code == 200
        assert server.client.post("/tokenize", json={"prompt": "hi", "model": "a"}).status_code == 200 and engine.asleep
        for body in ({}, {"stream": True}):
            assert server.ask("a", **body).status_code == 200
            until(lambda: engine.asleep)  # again
        assert "tahr_models_asleep 1" in server.client.get("/metrics").text
        assert server.loaders["a"].engines == [engine]  # the same: nothing was loaded again


def test_a_model_in_use_stays_awake() -> None:
    with pooled(sizes={"a": 1000}, sleep_after_s=0.0) as server:
        (engine,) = server.loaders["a"].engines
        assert server.ask("a", "SLOW and long").status_code == 200  # the engine asserts it
        until(lambda: engine.asleep)


def test_by_hand_as_vllm_names_it() -> None:
    with pooled(budget=None, sizes={"a": 1000, "b": 1000}) as server:
        server.client.post("/admin/models/load", json={"model": "b"})
        assert server.client.post("/sleep", params={"level": "1", "model": "a"}).json() == {
            "is_sleeping": True,
            "models": {"a": "asleep"},
        }
        assert not is_sleeping(server) and is_sleeping(server, model="a") and not is_sleeping(server, model="b")
        assert server.client.post("/sleep").json()["models"] == {"a": "asleep", "b": "asleep"}
        assert server.client.post("/wake_up").json()["models"] == {"a": "loaded", "b": "loaded"}
        server.client.post("/sleep")
        assert server.client.post("/wake", params={"model": "b"}).json()["models"] == {"b": "loaded"}
        for query, status in (
            ({"level": "2"}, 400), ({"tags": "weights"}, 400), ({"mode": "abort"}, 400), ({"model": "x"}, 404),
            ({"other": "1"}, 400),
        ):  # fmt: skip
            assert server.client.post("/sleep", params=query).status_code == status, query
        server.post("unload", model="a")
        assert server.client.post("/sleep", params={"model": "a"}).status_code == 409
        assert server.states() == {"a": "unloaded", "b": "loaded"}


def test_sleep_waits_for_requests_and_new_ones_wait_for_it() -> None:
    engine = ScriptedEngine("a")
    with serving(engine, settings=Settings(**QUIET)) as server, httpx.Client(base_url=server.address) as client:
        answers: list[int] = []

        def ask() -> None:
            body = {"prompt": "SLOW", "max_tokens": 12}
            answers.append(httpx.post(f"{server.address}/v1/completions", json=body, timeout=20).status_code)

        first = threading.Thread(target=ask)
        first.start()
        until(lambda: bool(engine.live))
        asleep: list[Any] = []
        by_hand = threading.Thread(target=lambda: asleep.append(client.post("/sleep", timeout=20).json()))
        by_hand.start()
        until(lambda: any(model.rest.task for model in server.state.models.models))
        ask()  # begins once the model has slept and is awake again
        first.join(20)
        by_hand.join(20)
        assert answers == [200, 200] and server.state.pool.sleep.n_sleeps == server.state.pool.sleep.n_wakes == 1


def test_models_that_do_not_sleep_say_why(caplog: pytest.LogCaptureFixture) -> None:
    with pooled(sizes={"a": 1000}, sleep_after_s=0.02) as server:
        (engine,) = server.loaders["a"].engines
        until(lambda: engine.asleep)
        server.client.post("/wake_up")
        engine.cannot_sleep = True
        until(lambda: "a stays awake: The script does not sleep." in caplog.text)
        refused = server.client.post("/sleep")
        assert refused.status_code == 409 and "does not sleep" in refused.json()["error"]["message"]
        assert server.ask("a").status_code == 200


def test_a_model_that_cannot_wake_is_a_503_and_is_tried_again() -> None:
    with pooled(sizes={"a": 1000}) as server:
        (engine,) = server.loaders["a"].engines
        server.client.post("/sleep")
        engine.cannot_wake = True
        for _ in range(2):
            refused = server.ask("a")
            assert refused.status_code == 503 and "does not wake" in refused.json()["error"]["message"]
        assert server.states() == {"a": "asleep"}
        engine.cannot_wake = False
        assert server.ask("a").status_code == 200 and server.states() == {"a": "loaded"}


def test_a_sleeping_model_leaves_its_part_of_the_budget_to_others() -> None:
    with pooled(budget=1500, sizes={"a": 1000, "b": 1000}) as server:
        server.client.post("/sleep")  # 600 of a's 1,000 bytes are free then
        assert server.ask("b").status_code == 200 and server.states() == {"a": "asleep", "b": "loaded"}
        assert server.ask("a").status_code == 200 and server.states() == {"a": "loaded", "b": "unloaded"}
        assert server.server.state.pool.n_bytes == 1000


def test_a_request_that_is_refused_wakes_nobody() -> None:
    with pooled(sizes={"a": 1000}, api_keys=("k",), admin_key="admin") as server:
        (engine,) = server.loaders["a"].engines
        assert server.client.post("/sleep").status_code == 401
        admin = {"authorization": "Bearer admin"}
        assert server.client.post("/sleep", headers=admin).json()["is_sleeping"]
        assert server.ask("a").status_code == 401 and engine.asleep
        server.client.headers["authorization"] = "Bearer k"
        assert server.ask("a", temperature=-1).status_code == 400 and engine.asleep
        assert server.client.post("/wake").status_code == 401 and engine.asleep
        assert server.ask("a").status_code == 200 and not engine.asleep


def test_a_server_that_ends_while_models_sleep() -> None:
    with pooled(sizes={"a": 1000}, sleep_after_s=0.01) as server:
        (engine,) = server.loaders["a"].engines
        until(lambda: engine.asleep)
    assert not engine.alive
