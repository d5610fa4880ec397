"""Traces for OpenTelemetry: a span per request with its queue, prefill and decode inside. Never holds a text.

Spans are made when a request has finished, from moments that are recorded anyway, so a server without traces pays
nothing.
"""

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from tahr import __version__
from tahr.errors import ConfigError, install_extra
from tahr.server.http.records import GenerationRecord, RequestRecord
from tahr.server.observe.observer import Observer

if TYPE_CHECKING:
    from tahr.config import SamplingParams
    from tahr.engine.sequences.stats import RequestStats

OPERATIONS = {  # operations by route, for all APIs
    **dict.fromkeys(("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"), "chat"),
    **dict.fromkeys(("/v1/completions", "/api/generate", "/completion", "/infill"), "text_completion"),
    **dict.fromkeys(("/v1/embeddings", "/api/embed", "/api/embeddings"), "embeddings"),
}
PARAMETERS = {  # attributes of the GenAI conventions, and the sampling parameters they stand for
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.choice.count": "n",
    "gen_ai.request.seed": "seed",
}
EXPORT_TIMEOUT_S = 5.0
CLOSE_S = 3.0  # time to send the last spans when the server ends
MISSING = "Traces need OpenTelemetry: run {install}, or leave out --otlp-endpoint."


def open_tracer(endpoint: str | None, host: str) -> "Tracer | None":
    """None unless traces are wanted."""
    return Tracer(endpoint, host) if endpoint else None


def traces_url(endpoint: str) -> str:
    """Where spans are posted to; an endpoint is a collector's address, or that very place."""
    return f"{base_url(endpoint)}/v1/traces"


def base_url(endpoint: str) -> str:
    """The collector's address."""
    return endpoint.rstrip("/").removesuffix("/v1/traces")


def resource_of() -> Any:
    """The server as OpenTelemetry's library describes what spans and metrics are of."""
    from opentelemetry.sdk.resources import Resource

    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "tahr"}
    return Resource.create({**name, "service.version": __version__})


class Tracer(Observer):
    """Sends spans to a collector from a thread of its own; if it cannot, spans are lost and requests go on."""

    def __init__(self, endpoint: str, host: str):
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(MISSING.format(install=install_extra("otel"))) from error
        self._provider = TracerProvider(resource=resource_of(), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tahr", __version__)
        self._context = TraceContextTextMapPropagator()
        self._api = trace
        self._host = host
        # perf_counter has no epoch: this is the difference to the clock on the wall.
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def request_finished(self, record: RequestRecord) -> None:
        """Make the span of a request and those inside it."""
        operation = OPERATIONS.get(record.route)
        if operation is None or record.method != "POST":
            return
        generation = record.generation
        span = self._tracer.start_span(
            f"{operation} {generation.model}" if generation else operation,
            context=self._context.extract(trace_context(record)),
            kind=self._api.SpanKind.SERVER,
            start_time=self._ns(record.began),
            attributes=self._attributes(record, operation),
        )
        if span.is_recording():
            if generation:
                span.set_attributes({**parameters(generation.params), **usage(generation), **latencies(generation)})
                self._children(span, generation)
            if fault := fault_of(record):
                span.set_attribute("error.type", fault)
                span.set_status(self._api.StatusCode.ERROR, fault)
        span.end(end_time=self._ns(record.ended))

    def close(self) -> None:
        """Send what is left, but wait for no collector that does not answer."""
        sending = threading.Thread(target=self._provider.shutdown, name="tahr-traces", daemon=True)
        sending.start()
        sending.join(CLOSE_S)

    def _ns(self, moment: float) -> int:
        return self._epoch_ns + int(moment * 1e9)

    def _attributes(self, record: RequestRecord, operation: str) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "tahr",
            "http.request.method": record.method,
            "http.route": record.route,
            "http.response.status_code": record.status,
            "server.address": self._host,
        }

    def _children(self, parent: Any, generation: GenerationRecord) -> None:
        """One span for each part of each choice."""
        context = self._api.set_span_in_context(parent)
        for index, stats in enumerate(generation.stats):
            for name, begun, ended in stats.parts():
                facts = {"tahr.choice.index": index, **facts_of(name, stats)}
                child = self._tracer.start_span(name, context=context, start_time=self._ns(begun), attributes=facts)
                child.end(end_time=self._ns(ended))


def trace_context(record: RequestRecord) -> dict[str, str]:
    found = {name: record.headers.get(name.encode(), b"").decode("latin-1") for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if value}


def parameters(params: "SamplingParams") -> dict[str, Any]:
    values = {name: getattr(params, field) for name, field in PARAMETERS.items()}
    return {name: value for name, value in values.items() if value is not None}


def usage(generation: GenerationRecord) -> dict[str, Any]:
    return {
        "gen_ai.request.model": generation.model,
        "gen_ai.response.model": generation.model,
        "gen_ai.response.id": generation.id,
        "gen_ai.usage.input_tokens": generation.n_prompt_tokens,
        "gen_ai.usage.output_tokens": generation.n_tokens,
        "gen_ai.usage.cache_read.input_tokens": generation.n_cached,
        "gen_ai.response.finish_reasons": generation.reasons,
    }


def latencies(generation: GenerationRecord) -> dict[str, float]:
    """Seconds of the first choice that is finished, as other engines tell them."""
    if not generation.stats:
        return {}
    stats = generation.stats[0]
    first_token_s = stats.first_token_at - generation.arrived if stats.first_token_at else None
    values = {
        "gen_ai.latency.time_in_queue": stats.queue_s,
        "gen_ai.latency.time_in_model_prefill": stats.prefill_s,
        "gen_ai.latency.time_in_model_decode": stats.decode_s,
        "gen_ai.latency.time_to_first_token": first_token_s,
    }
    return {name: value for name, value in values.items() if value is not None}


def facts_of(part: str, stats: "RequestStats") -> dict[str, Any]:
    if part == "prefill":
        return {"tahr.prompt_tokens": stats.n_prompt_tokens, "tahr.cached_tokens": stats.n_cached_tokens}
    if part == "decode":
        return {"tahr.generated_tokens": stats.n_generated_tokens, "tahr.preemptions": stats.n_preempted}
    return {}


def fault_of(record: RequestRecord) -> str:
    """The kind of failure in a word; empty without one."""
    finish = record.generation.finish if record.generation else ""
    if finish in ("error", "client_gone"):
        return finish if finish == "client_gone" or record.status == 200 else str(record.status)
    return str(record.status) if record.status >= 400 else "client_gone" if not record.status else ""
