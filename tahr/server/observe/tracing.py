"""Traces for OpenTelemetry: a span per request, with its wait, its prompt and its reply inside. Never holds a text.

Spans are made when a request is over, of moments that were noted anyway, so a server without traces pays nothing.
"""

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from tahr import __version__
from tahr.errors import ConfigError

if TYPE_CHECKING:
    from tahr.config import SamplingParams
    from tahr.engine.stats import RequestStats
    from tahr.server.http.request import Call
    from tahr.server.observe.server_metrics import Meter
    from tahr.server.settings import Settings

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
ASKED = {  # attributes of the GenAI conventions, and the sampling parameters they tell
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
CLOSE_S = 3.0  # for spans that are still to be sent when the server ends
MISSING = "Traces need OpenTelemetry: install it with `pip install 'tahr[otel]'`, or leave out --otlp-endpoint."


def open_tracer(settings: "Settings") -> "Tracer | None":
    """None unless traces are wanted."""
    return Tracer(settings.otlp_endpoint, settings.host) if settings.otlp_endpoint else None


def traces_url(endpoint: str) -> str:
    """Where spans are posted to; an endpoint is a collector's address, or that very place."""
    base = endpoint.rstrip("/")
    return base if base.endswith("/v1/traces") else f"{base}/v1/traces"


class Tracer:
    """Sends spans to a collector, from a thread of its own; if it cannot, spans are lost and requests go on."""

    def __init__(self, endpoint: str, host: str):
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(MISSING) from error
        name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "tahr"}
        resource = Resource.create({**name, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tahr", __version__)
        self._context = TraceContextTextMapPropagator()
        self._api = trace
        self._host = host
        # perf_counter says how long, not when: this is what is between the two.
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def finish(self, call: "Call", began: float) -> None:
        """A request is over."""
        operation = OPERATIONS.get(call.path)
        if operation is None or call.method != "POST":
            return
        meter, ask = call.meter, call.ask
        span = self._tracer.start_span(
            f"{operation} {meter.model}" if meter else operation,
            context=self._context.extract({k: call.header(k) for k in ("traceparent", "tracestate") if call.header(k)}),
            kind=self._api.SpanKind.SERVER,
            start_time=self._ns(began),
            attributes=self._attributes(call, operation),
        )
        if span.is_recording():
            if meter and ask:
                span.set_attributes(
                    {**asked(ask.prompts[0].params), "gen_ai.response.id": ask.dialect.id, **cost(meter)}
                )
                self._parts(span, meter)
            if fault := fault_of(call):
                span.set_attribute("error.type", fault)
                span.set_status(self._api.StatusCode.ERROR, fault)
        span.end(end_time=self._ns(time.perf_counter()))

    def close(self) -> None:
        """Send what is left, but wait for no collector that does not answer."""
        sending = threading.Thread(target=self._provider.shutdown, name="tahr-traces", daemon=True)
        sending.start()
        sending.join(CLOSE_S)

    def _ns(self, moment: float) -> int:
        return self._epoch_ns + int(moment * 1e9)

    def _attributes(self, call: "Call", operation: str) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "tahr",
            "http.request.method": call.method,
            "http.route": call.path,
            "http.response.status_code": call.status,
            "server.address": self._host,
        }

    def _parts(self, parent: Any, meter: "Meter") -> None:
        """One child for each part of each answer."""
        context = self._api.set_span_in_context(parent)
        for index, stats in enumerate(meter.stats):
            for name, begun, ended in stats.parts():
                facts = {"tahr.choice.index": index, **facts_of(name, stats)}
                child = self._tracer.start_span(name, context=context, start_time=self._ns(begun), attributes=facts)
                child.end(end_time=self._ns(ended))


def asked(params: "SamplingParams") -> dict[str, Any]:
    values = {name: getattr(params, field) for name, field in ASKED.items()}
    return {name: value for name, value in values.items() if value is not None}


def cost(meter: "Meter") -> dict[str, Any]:
    return {
        "gen_ai.request.model": meter.model,
        "gen_ai.response.model": meter.model,
        "gen_ai.usage.input_tokens": meter.n_prompt_tokens,
        "gen_ai.usage.output_tokens": meter.n_tokens,
        "gen_ai.usage.cache_read.input_tokens": meter.n_cached,
        "gen_ai.response.finish_reasons": [meter.ended or "error"],
    }


def facts_of(part: str, stats: "RequestStats") -> dict[str, Any]:
    if part == "prefill":
        return {"tahr.prompt_tokens": stats.n_prompt_tokens, "tahr.cached_tokens": stats.n_cached_tokens}
    if part == "decode":
        return {"tahr.generated_tokens": stats.n_generated_tokens, "tahr.preemptions": stats.n_preempted}
    return {}


def fault_of(call: "Call") -> str:
    """What went wrong, in a word; empty if nothing did."""
    ended = call.meter.ended if call.meter else ""
    if ended in ("error", "client_gone"):
        return ended if ended == "client_gone" or call.status == 200 else str(call.status)
    return str(call.status) if call.status >= 400 else "client_gone" if not call.status else ""
