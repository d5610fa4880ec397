"""Server metrics for OpenTelemetry, under the names of the GenAI conventions, sent beside the spans."""

import os
import threading
from typing import TYPE_CHECKING, Any

from tahr.errors import ConfigError, install_extra
from tahr.server.http.records import GenerationRecord
from tahr.server.observe.observer import Observer
from tahr.server.observe.tracing import CLOSE_S, EXPORT_TIMEOUT_S, MISSING, OPERATIONS, base_url, resource_of

if TYPE_CHECKING:
    from tahr.engine.sequences.stats import RequestStats

OFF = "none"  # value of OTEL_METRICS_EXPORTER, for collectors that take spans alone
FAILURES = ("error", "client_gone")
# Name, description and bounds in seconds, as the conventions have them.
DURATION = (
    "gen_ai.server.request.duration",
    "Arrival of a request to its end.",
    (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
FIRST_TOKEN = (
    "gen_ai.server.time_to_first_token",
    "Arrival of a request to its first token.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
PER_TOKEN = (
    "gen_ai.server.time_per_output_token",
    "Mean time per output token of a choice, after its first.",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)


def open_otel_metrics(endpoint: str | None, host: str) -> "OtelMetrics | None":
    """None unless an endpoint is there and takes metrics."""
    wanted = os.environ.get("OTEL_METRICS_EXPORTER", "").lower() != OFF
    return OtelMetrics(endpoint, host) if endpoint and wanted else None


class OtelMetrics(Observer):
    """Three histograms, sent every minute from a thread of the library's (OTEL_METRIC_EXPORT_INTERVAL)."""

    def __init__(self, endpoint: str, host: str):
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        except ImportError as error:
            raise ConfigError(MISSING.format(install=install_extra("otel"))) from error
        exporter = OTLPMetricExporter(endpoint=f"{base_url(endpoint)}/v1/metrics", timeout=EXPORT_TIMEOUT_S)
        reader = PeriodicExportingMetricReader(exporter)
        self._provider = MeterProvider([reader], resource=resource_of(), shutdown_on_exit=False)
        self._meter = self._provider.get_meter("tahr")
        self._host = host
        self._duration = self._histogram(*DURATION)
        self._first_token = self._histogram(*FIRST_TOKEN)
        self._per_token = self._histogram(*PER_TOKEN)

    def _histogram(self, name: str, description: str, bounds: tuple[float, ...]) -> Any:
        return self._meter.create_histogram(
            name, unit="s", description=description, explicit_bucket_boundaries_advisory=bounds
        )

    def first_token(self, record: GenerationRecord, seconds: float) -> None:
        self._first_token.record(seconds, self._attributes(record))

    def choice_finished(self, record: GenerationRecord, index: int, stats: "RequestStats") -> None:
        if stats.n_generated_tokens > 1:
            self._per_token.record(stats.decode_s / (stats.n_generated_tokens - 1), self._attributes(record))

    def generation_finished(self, record: GenerationRecord, seconds: float) -> None:
        fault = {"error.type": record.finish} if record.finish in FAILURES else {}
        self._duration.record(seconds, {**self._attributes(record), **fault})

    def close(self) -> None:
        """Send what is left, but wait for no collector that does not answer."""
        sending = threading.Thread(target=self._provider.shutdown, name="tahr-metrics", daemon=True)
        sending.start()
        sending.join(CLOSE_S)

    def _attributes(self, record: GenerationRecord) -> dict[str, str]:
        return {
            "gen_ai.operation.name": OPERATIONS.get(record.route, "text_completion"),
            "gen_ai.provider.name": "tahr",
            "gen_ai.request.model": record.model,
            "gen_ai.response.model": record.model,
            "server.address": self._host,
        }
