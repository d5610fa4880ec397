"""Traces: what a collector on a real socket receives."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.errors import ConfigError
from tahr.server.observe.tracing import open_tracer, traces_url
from tahr.server.state.settings import Settings

SECRET = "the-butler-did-it"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes spans over HTTP, as a real one does."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def bodies_of(self, path: str) -> list[bytes]:
        return [body for at, body in self.received if at == path]

    @property
    def paths(self) -> set[str]:
        return {path for path, _ in self.received}

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.received]

    def histograms(self) -> dict[str, list[Any]]:
        """Points by the name of their metric, as the last message has them."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        last = ExportMetricsServiceRequest.FromString(self.bodies_of("/v1/metrics")[-1])
        metrics = [each for group in last.resource_metrics for scope in group.scope_metrics for each in scope.metrics]
        assert all(each.unit == "s" for each in metrics)
        return {each.name: list(each.histogram.data_points) for each in metrics}

    def spans(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = [ExportTraceServiceRequest.FromString(body) for body in self.bodies_of("/v1/traces")]
        groups = [group for each in found for group in each.resource_spans]
        assert all(attributes(group.resource)["service.name"] == "tahr" for group in groups)
        return [span for group in groups for scope in group.scope_spans for span in scope.spans]


def attributes(thing: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return [plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {pair.key: plain(pair.value) for pair in thing.attributes}


@contextmanager
def traced(collector: Collector) -> Iterator[httpx.Client]:
    pytest.importorskip("opentelemetry.sdk", reason="the extra tahr[otel] is not installed")
    settings = Settings(port=0, log_interval_s=0, otlp_endpoint=collector.address, api_keys=("k",))
    key = {"authorization": "Bearer k"}
    with (
        serving(ScriptedEngine(), settings=settings) as running,
        httpx.Client(base_url=running.address, headers=key) as client,
    ):
        yield client
    collector.server.shutdown()  # the server has sent everything before it ended


def ask(client: httpx.Client, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": body.pop("content", SECRET)}]
    return client.post("/v1/chat/completions", json={"messages": messages, **body}, headers=headers or {})


def test_a_request_is_a_span_with_its_parts() -> None:
    collector = Collector()
    with traced(collector) as client:
        made = ask(client, {"traceparent": f"00-{TRACE}-{PARENT}-01"}, max_tokens=7, temperature=0.5).json()
    assert collector.paths == {"/v1/traces", "/v1/metrics"}
    (whole,) = [span for span in collector.spans() if span.name == "chat scripted"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    told = attributes(whole)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tahr",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": made["id"],
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": made["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "http.response.status_code": 200,
    }
    assert {name: told.get(name) for name in expected} == expected
    latencies = [name for name in told if name.startswith("gen_ai.latency.")]
    assert sorted(latencies) == [
        f"gen_ai.latency.time_in_{part}" for part in ("model_decode", "model_prefill", "queue")
    ]
    assert "error.type" not in told and whole.start_time_unix_nano < whole.end_time_unix_nano


def test_other_paths_of_a_route_are_traced_too() -> None:
    collector = Collector()
    with traced(collector) as client:
        client.post("/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    (whole,) = [span for span in collector.spans() if span.name == "chat scripted"]
    assert attributes(whole)["http.route"] == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/responses", {"input": "hi", "max_output_tokens": 16}, "chat scripted"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}, "chat scripted"),
        ("/api/chat", {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}, "chat scripted"),
        ("/api/generate", {"model": "scripted", "prompt": "hi"}, "text_completion scripted"),
        ("/completion", {"prompt": "hi", "n_predict": 3}, "text_completion scripted"),
        ("/api/embed", {"model": "scripted", "input": "hi"}, "embeddings"),
    ],
)
def test_requests_of_every_api_are_traced(path: str, body: dict[str, Any], name: str) -> None:
    collector = Collector()
    with traced(collector) as client:
        client.post(path, json=body).raise_for_status()
    (whole,) = [span for span in collector.spans() if "http.route" in attributes(span)]
    assert (whole.name, attributes(whole)["http.route"]) == (name, path)


def test_parts_lie_inside_in_their_order(stories: Any) -> None:
    from tahr import EngineConfig
    from tahr.server.models.loading import ModelChoice, served_models

    pytest.importorskip("opentelemetry.sdk", reason="the extra tahr[otel] is not installed")
    collector = Collector()
    settings = Settings(port=0, log_interval_s=0, otlp_endpoint=collector.address)
    choice = ModelChoice(str(stories), "m", config=EngineConfig(n_threads=1))
    with serving(settings=settings, load=lambda: served_models([choice])) as running:
        client = httpx.Client(base_url=running.address, timeout=30)
        while client.get("/health").status_code != 200:
            pass
        client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 5, "n": 2}).raise_for_status()
    spans = collector.spans()
    (whole,) = [span for span in spans if span.name == "text_completion m"]
    parts = [span for span in spans if span.parent_span_id == whole.span_id]
    assert sorted(part.name for part in parts) == ["decode", "decode", "prefill", "prefill", "queue", "queue"]
    first = {part.name: part for part in parts if attributes(part)["tahr.choice.index"] == 0}
    moments = [whole.start_time_unix_nano]
    for name in ("queue", "prefill", "decode"):
        moments += [first[name].start_time_unix_nano, first[name].end_time_unix_nano]
    moments.append(whole.end_time_unix_nano)
    assert moments == sorted(moments)
    assert attributes(first["decode"])["tahr.generated_tokens"] == 5


def test_refusals_and_failures_are_told_and_texts_are_not() -> None:
    collector = Collector()
    with traced(collector) as client:
        assert ask(client, temperature=-1).status_code == 400
        assert ask(client, model="nobody").status_code == 404
        assert ask(client, {"authorization": "Bearer wrong"}).status_code == 401
        ask(client, content=f"{SECRET} FAIL@3", stream=True)
        client.get("/health")
        client.post("/tokenize", json={"prompt": SECRET})
    spans = [span for span in collector.spans() if span.name.startswith("chat")]
    assert sorted(attributes(span)["error.type"] for span in spans) == ["400", "401", "404", "error"]
    assert all(span.status.code == 2 for span in spans) and len(spans) == len(collector.spans())
    assert SECRET.encode() not in b"".join(collector.bodies)


def test_server_metrics_have_the_names_and_bounds_of_the_conventions() -> None:
    collector = Collector()
    with traced(collector) as client:
        ask(client, max_tokens=7)
        ask(client, max_tokens=7, stream=True)
        ask(client, content=f"{SECRET} FAIL@3", stream=True)
        client.post("/v1/completions", json={"prompt": SECRET, "max_tokens": 3})
        assert ask(client, temperature=-1).status_code == 400  # never began
    found = collector.histograms()
    assert {name: len(points[0].explicit_bounds) for name, points in found.items()} == {
        "gen_ai.server.request.duration": 14,
        "gen_ai.server.time_to_first_token": 16,
        "gen_ai.server.time_per_output_token": 13,
    }
    by_kind = {
        (told["gen_ai.operation.name"], told.get("error.type", "")): point.count
        for point in found["gen_ai.server.request.duration"]
        for told in [attributes(point)]
    }
    assert by_kind == {("chat", ""): 2, ("chat", "error"): 1, ("text_completion", ""): 1}
    told = attributes(found["gen_ai.server.time_to_first_token"][0])
    assert told["gen_ai.provider.name"] == "tahr" and told["gen_ai.request.model"] == "scripted"
    assert SECRET.encode() not in b"".join(collector.bodies)


def test_a_collector_of_spans_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    collector = Collector()
    with traced(collector) as client:
        ask(client)
    assert collector.paths == {"/v1/traces"}


def test_a_dead_collector_harms_nobody() -> None:
    collector = Collector()
    collector.server.shutdown()
    collector.server.server_close()
    with traced(collector) as client:
        assert ask(client).status_code == 200


def test_off_unless_asked_for_and_missing_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_tracer(None, "") is None
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[otel\]'"):
        open_tracer("http://localhost:4318", "")
    with pytest.raises(ConfigError, match="must be a URL"):
        Settings(otlp_endpoint="localhost:4318")


@pytest.mark.parametrize("endpoint", ["http://x:4318", "http://x:4318/", "http://x:4318/v1/traces"])
def test_where_spans_go(endpoint: str) -> None:
    assert traces_url(endpoint) == "http://x:4318/v1/traces"


def test_choices_that_ended_for_different_reasons_are_told_each_by_its_own() -> None:
    collector = Collector()
    with traced(collector) as client:
        body = {"prompt": ["aaa", "bbb"], "stop": ["b"], "max_tokens": 16, "n": 2}
        choices = client.post("/v1/completions", json=body).json()["choices"]
        text = client.get("/metrics").text
    assert [choice["finish_reason"] for choice in choices] == ["length", "length", "stop", "stop"]
    found = [line for line in text.splitlines() if line.startswith("vllm:request_success_total")]
    told = 'vllm:request_success_total{model_name="scripted",finished_reason="%s"} 2'
    assert sorted(found) == [told % "length", told % "stop"]
    (whole,) = [span for span in collector.spans() if "http.route" in attributes(span)]
    assert attributes(whole)["gen_ai.response.finish_reasons"] == ["length", "length", "stop", "stop"]
