"""Who may ask, how much, and what happens to those who ask badly."""

import base64
import gzip
import logging
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.errors import ConfigError, ServerError
from tahr.server.http import protocol, rate_limit
from tahr.server.http.errors import HttpError
from tahr.server.http.rate_limit import RateLimit
from tahr.server.lifecycle import HttpServer
from tahr.server.models import registry as served_models
from tahr.server.models.registry import STALLED_AFTER_S, Health, ServedModel
from tahr.server.routes import ROUTES
from tahr.server.state.settings import Settings

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}


def settings(**more: Any) -> Settings:
    return Settings(port=0, log_interval_s=0, **more)


def exchange(server: HttpServer, data: bytes) -> bytes:
    """Bytes out, bytes in, until the server closes."""
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


# ---- keys ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[HttpServer]:
    with serving(ScriptedEngine(), settings=settings(api_keys=("first-key", "second-key"))) as running:
        yield running


def test_a_key_may_have_any_letters() -> None:
    key = "schlüssel€"
    with serving(ScriptedEngine(), settings=settings(api_keys=(key,))) as server:
        for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key)):
            for sent, status in ((value, 200), (value + "é", 401)):
                reply = httpx.get(f"{server.address}/v1/models", headers={name: sent.encode()})
                assert reply.status_code == status, name
        assert httpx.get(f"{server.address}/v1/models", headers={"x-api-key": b"\xff\xfe"}).status_code == 401


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_but_health_needs_a_key(locked: HttpServer, route: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked.state, "drain", lambda: None)  # the server is needed for more
    path = route.path + "scripted" if route.path == "/v1/models/" else route.path
    bare = httpx.request(route.method, locked.address + path)
    assert bare.status_code == (200 if route.is_open else 401)
    assert route.is_open == (path in ("/health", "/ready"))
    wrong = httpx.request(route.method, locked.address + path, headers={"authorization": "Bearer first-ke"})
    assert wrong.status_code == bare.status_code
    right = httpx.request(route.method, locked.address + path, headers={"authorization": "Bearer second-key"})
    is_named = route.path.startswith(("/admin/loras/", "/page/", "/v1/responses/"))  # by an id that is not there
    assert right.status_code in (200, 202, 400) or (is_named and right.status_code == 404)


def test_a_key_in_the_header_of_anthropics_clients(locked: HttpServer) -> None:
    answers = [httpx.post(locked.address + CHAT, json=BODY, headers={"x-api-key": key}) for key in ("first-key", "x")]
    assert [answer.status_code for answer in answers] == [200, 401]


@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings", "/models"])
def test_routes_without_the_version_are_the_same_routes(locked: HttpServer, path: str) -> None:
    method, key = "GET" if path == "/models" else "POST", {"authorization": "Bearer first-key"}
    assert httpx.request(method, locked.address + path).status_code == 401
    short, full = (httpx.request(method, locked.address + at, headers=key) for at in (path, "/v1" + path))
    assert short.status_code == full.status_code in (200, 400) and short.json() == full.json()


def test_an_unknown_route_says_nothing_without_a_key(locked: HttpServer) -> None:
    response = httpx.get(locked.address + "/admin")
    assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("value", ["", "Bearer", "first-key", "Basic first-key", "Basic ::::", "Bearer \xff"])
def test_what_is_no_key(locked: HttpServer, value: str) -> None:
    sent = {"authorization": value.encode("latin-1")}
    assert httpx.post(locked.address + CHAT, json=BODY, headers=sent).status_code == 401  # type: ignore[arg-type]


def test_a_browser_can_ask_for_the_key(locked: HttpServer) -> None:
    requested = httpx.get(locked.address + "/")
    assert requested.headers["www-authenticate"].startswith("Basic")
    coded = base64.b64encode(b"anyone:first-key").decode()
    assert httpx.get(locked.address + "/", headers={"authorization": f"Basic {coded}"}).status_code == 200
    assert httpx.post(locked.address + CHAT, json=BODY).headers["www-authenticate"] == "Bearer"


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Settings(api_keys=("  ",))


# ---- limits -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(context_size=4096)


@pytest.fixture(scope="module")
def limited(engine: ScriptedEngine) -> Iterator[HttpServer]:
    made = settings(max_body_bytes=4096, max_requests=2, max_tokens_cap=50, request_timeout_s=1.0, body_timeout_s=0.5)
    with serving(engine, settings=made) as running:
        yield running


def test_a_body_that_is_too_large(limited: HttpServer) -> None:
    for sent in ({"content": b"x" * 5000}, {"content": (b"x" * 1000 for _ in range(5))}):
        response = httpx.post(limited.address + CHAT, **sent)  # type: ignore[arg-type]
        assert response.status_code == 413 and response.json()["error"]["code"] == "body_too_large"


def test_a_body_that_is_compressed(limited: HttpServer) -> None:
    body = gzip.compress(b"{}")
    for path in (CHAT, "/api/chat", "/v1/messages"):
        response = httpx.post(limited.address + path, content=body, headers={"content-encoding": "gzip"})
        assert response.status_code == 415 and "compressed (gzip)" in str(response.json()["error"])
    plain = httpx.post(limited.address + CHAT, json=BODY, headers={"content-encoding": "identity"})
    assert plain.status_code == 200


def test_a_body_that_lies_about_its_size(limited: HttpServer) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999\r\n\r\n"
    assert exchange(limited, head).startswith(b"HTTP/1.1 413")


def test_a_body_that_never_ends(limited: HttpServer) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"
    assert b"did not arrive" in exchange(limited, head)


def test_headers_that_are_too_large(limited: HttpServer) -> None:
    for head in (b"GET /health HTTP/1.1\r\nx: ", b"GET /"):
        answer = exchange(limited, head.ljust(protocol.MAX_HEAD_BYTES + 1, b"y"))
        assert answer.startswith(b"HTTP/1.1 431") and b'"error"' in answer and b"x-request-id: req-" in answer


def test_a_large_head_that_comes_all_at_once(limited: HttpServer) -> None:
    many = b"".join(b"x%d: y\r\n" % i for i in range(protocol.MAX_HEAD_BYTES // 8))
    answer = exchange(limited, b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + many + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431") and answer.count(b"HTTP/1.1") == 1
    assert httpx.get(limited.address + "/health").status_code == 200


def test_times_that_make_no_sense_are_refused() -> None:
    for name in ("keep_alive_s", "body_timeout_s"):
        with pytest.raises(ConfigError, match=name):
            Settings(**{name: 0})


def test_a_deadline_of_0_is_none() -> None:
    with serving(ScriptedEngine(), settings=settings(request_timeout_s=0.0)) as running:
        slow = {"messages": [{"role": "user", "content": "SLOW"}], "max_tokens": 5}
        assert httpx.post(running.address + CHAT, json=slow).status_code == 200


def test_many_requests_on_one_connection_are_not_large_headers(limited: HttpServer) -> None:
    with httpx.Client(base_url=limited.address) as client:
        for _ in range(50):
            assert client.post("/tokenize", json={"prompt": "x" * 3000}).status_code == 200


def test_headers_that_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.3)
    with serving(ScriptedEngine()) as running:
        began = time.monotonic()
        assert exchange(running, b"GET /health HTTP/1.1\r\nhost:") == b""
        assert time.monotonic() - began < 5


def test_what_is_not_http(limited: HttpServer) -> None:
    answer = exchange(limited, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400") and b'"error"' in answer


def test_the_cap_on_tokens(limited: HttpServer, engine: ScriptedEngine) -> None:
    over = httpx.post(limited.address + CHAT, json={**BODY, "max_tokens": 51})
    assert over.status_code == 400 and over.json()["error"]["param"] == "max_tokens"
    assert httpx.post(limited.address + CHAT, json=BODY).status_code == 200
    assert engine.seen[-1].params.max_tokens == 50


@pytest.mark.parametrize("stream", [False, True])
def test_the_deadline(limited: HttpServer, engine: ScriptedEngine, stream: bool) -> None:
    hanging = {"messages": [{"role": "user", "content": "HANG@1"}], "stream": stream}
    response = httpx.post(limited.address + CHAT, json=hanging, timeout=10)
    assert response.status_code == (200 if stream else 504)
    assert "timeout_error" in response.text and response.text.endswith("data: [DONE]\n\n" if stream else "}")
    assert not engine.live


def test_more_requests_than_the_server_takes(limited: HttpServer, engine: ScriptedEngine) -> None:
    with httpx.Client(base_url=limited.address, timeout=10) as client:
        hanging = {"messages": [{"role": "user", "content": "HANG@1"}], "stream": True}
        with client.stream("POST", CHAT, json=hanging), client.stream("POST", CHAT, json=hanging):
            response = httpx.post(limited.address + CHAT, json=BODY)
            assert response.status_code == 503 and response.headers["retry-after"]
            assert response.json()["error"]["type"] == "service_unavailable_error"
            assert client.get("/health").status_code == 200


def test_the_rate_limit_belongs_to_a_key() -> None:
    made = settings(rate_limit=3, api_keys=("a-key", "b-key"))
    with serving(ScriptedEngine(), settings=made) as running, httpx.Client(base_url=running.address) as client:

        def post(key: str) -> httpx.Response:
            return client.post("/tokenize", json={"prompt": "x"}, headers={"authorization": f"Bearer {key}"})

        assert [post("a-key").status_code for _ in range(4)] == [200, 200, 200, 429]
        refused = post("a-key")
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert post("b-key").status_code == 200
        assert client.get("/health").status_code == 200


def test_all_keys_share_an_allowance_too() -> None:
    made = settings(rate_limit=3, rate_limit_total=4, api_keys=("a-key", "b-key"))
    with serving(ScriptedEngine(), settings=made) as running, httpx.Client(base_url=running.address) as client:

        def post(key: str) -> int:
            requested = client.post("/tokenize", json={"prompt": "x"}, headers={"authorization": f"Bearer {key}"})
            return requested.status_code

        assert [post(key) for key in ("a-key", "a-key", "b-key", "b-key", "b-key")] == [200] * 4 + [429]
        assert client.get("/health").json()["admission"]["rejected_requests"] == 1


def test_who_is_refused_for_the_sake_of_all_keeps_an_own_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rate_limit, "time", SimpleNamespace(monotonic=lambda: now[0]))
    limits = rate_limit.rate_limits(2, 60)
    for i in range(60):
        limits.check(f"other {i}")
    for _ in range(5):
        with pytest.raises(HttpError):
            limits.check("x")
    now[0] = 2.0  # of which two are earned for all
    limits.check("x")
    limits.check("x")


def test_a_bucket_fills_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rate_limit, "time", SimpleNamespace(monotonic=lambda: now[0]))
    limit = RateLimit(60)
    assert [limit.take("x") for _ in range(60)] == [0] * 60 and limit.take("x") == 1
    now[0] = 1.1
    assert (limit.take("x"), limit.take("x")) == (0, 1)


def test_who_waits_as_long_as_was_said_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rate_limit, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for per_minute in (7, 45, 50, 60, 1000):
        limit = RateLimit(per_minute)
        assert not any(limit.take("x") for _ in range(per_minute))
        now[0] += limit.take("x")
        assert limit.take("x") == 0


# ---- other sites --------------------------------------------------------------------------------------------


def test_other_sites_are_kept_out_unless_asked_for(limited: HttpServer) -> None:
    response = httpx.post(limited.address + CHAT, json=BODY, headers={"origin": "https://elsewhere.example"})
    assert response.status_code == 403 and "--cors-origin" in response.json()["error"]["message"]
    same = httpx.post(limited.address + CHAT, json=BODY, headers={"origin": limited.address})
    assert same.status_code == 200 and "access-control-allow-origin" not in same.headers
    assert httpx.options(limited.address + CHAT).status_code == 405


def test_a_name_that_somebody_points_to_this_machine_is_another_site(limited: HttpServer) -> None:
    port = limited.address.rsplit(":", 1)[1]
    for name, status in (("evil.example", 403), ("localhost", 200), ("127.0.0.1", 200), ("[::1", 403)):
        headers = {"origin": f"http://{name}:{port}", "host": f"{name}:{port}"}
        assert httpx.post(limited.address + CHAT, json=BODY, headers=headers).status_code == status, name


def test_allowed_origins() -> None:
    made = settings(cors_origins=("https://app.example",), api_keys=("key",))
    with serving(ScriptedEngine(), settings=made) as running:
        origin = {"origin": "https://app.example"}
        requested = httpx.options(running.address + CHAT, headers={**origin, "access-control-request-headers": "x-y"})
        assert requested.status_code == 204 and requested.headers["access-control-allow-headers"] == "x-y"
        assert requested.headers["access-control-allow-origin"] == "https://app.example"
        refused = httpx.post(running.address + CHAT, json=BODY, headers=origin)
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "https://app.example"
        assert httpx.get(running.address + "/health", headers={"origin": "https://evil.example"}).status_code == 403


# ---- health -------------------------------------------------------------------------------------------------


def test_nothing_is_answered_while_loading() -> None:
    loads = threading.Event()

    def load() -> list[ServedModel]:
        loads.wait(20)
        return [ServedModel(("late",), ScriptedEngine())]

    with serving(load=load) as running, httpx.Client(base_url=running.address) as client:
        loading = client.get("/health")
        assert loading.status_code == 503 and loading.json()["status"] == "loading"
        assert client.get("/ready").status_code == 503
        refused = client.post(CHAT, json=BODY)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert client.get("/v1/models").json()["data"] == []
        loads.set()
        end = time.monotonic() + 5
        while client.get("/health").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert client.post(CHAT, json=BODY).status_code == 200


def test_health_says_which_model_has_lost_its_weights() -> None:
    fine, lost = ScriptedEngine(), ScriptedEngine()
    models = [ServedModel(("fine",), fine), ServedModel(("lost",), lost)]
    with serving(load=lambda: models) as running, httpx.Client(base_url=running.address) as client:
        before = client.get("/health")
        assert before.status_code == 200 and before.json()["models"]["lost"]["error"] is None
        lost.weights_changed = True
        after = client.get("/health")
        assert after.status_code == 503 and after.json()["status"] == "failing"
        assert "cut short" in after.json()["models"]["lost"]["error"]
        assert after.json()["models"]["fine"]["error"] is None and client.get("/ready").status_code == 503


def test_an_engine_that_died_or_stands_still_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine()
    with serving(engine) as running, httpx.Client(base_url=running.address) as client:
        assert client.get("/health").status_code == 200
        engine.alive = False
        assert client.get("/health").json()["status"] == "failing"
        engine.alive = True
        served = ServedModel(("x",), engine)
        assert served.health() is Health.OK
        engine.live.add(1)
        now = time.monotonic()
        clock = SimpleNamespace(monotonic=lambda: now + STALLED_AFTER_S + 1)
        monkeypatch.setattr(served_models, "time", clock)
        engine.cpu_s += 5.0
        assert served.health() is Health.BUSY, "it computes, so it is in a long step"
        assert served.health() is Health.FAILING
        busy = client.get("/health")
        assert (busy.status_code, busy.json()["status"]) == (200, "busy")
        engine.stats.steps += 1
        assert served.health() is Health.OK
        engine.live.clear()


def test_a_model_that_does_not_load_ends_the_server() -> None:
    def load() -> list[ServedModel]:
        raise ServerError("This model is broken: take another.")

    with pytest.raises(ServerError, match="broken"):
        HttpServer(settings(), load, lambda *_: None).run()


def test_a_taken_port_is_a_sentence(limited: HttpServer) -> None:
    port = int(limited.address.rsplit(":", 1)[1])
    with pytest.raises(ServerError, match="--port"):
        HttpServer(Settings(port=port), list, lambda *_: None)


# ---- the log ------------------------------------------------------------------------------------------------


def test_the_log_says_what_happened_but_not_what_was_said(caplog: pytest.LogCaptureFixture) -> None:
    secret = "swordfish"
    with serving(ScriptedEngine()) as running, caplog.at_level(logging.INFO, "tahr.server"):
        for text in (f"hello {secret}", f"FAIL@2 {secret}"):
            httpx.post(running.address + CHAT, json={"messages": [{"role": "user", "content": text}]})
    lines = [record.getMessage() for record in caplog.records]
    starts = [line for line in lines if line.startswith("start ")]
    dones = [line for line in lines if line.startswith("done ")]
    assert len(starts) == len(dones) == 2
    assert starts[0].split()[1] == dones[0].split()[1]
    assert "finish=stop" in dones[0] and "finish=error" in dones[1] and "route=/v1/chat/completions" in starts[0]
    assert secret not in "\n".join(lines)
