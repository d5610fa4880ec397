"""Write the Grafana dashboard: `python scripts/dashboard.py > deploy/monitoring/dashboard.json`."""

import json
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${source}"}
WHERE = 'instance=~"$instance"'
MODEL = f'{WHERE}, model_name=~"$model"'
RATE = "$__rate_interval"
WIDTH, HEIGHT = 8, 8


def rate(name: str, where: str = MODEL, by: str = "model_name") -> str:
    return f"sum by ({by}) (rate({name}{{{where}}}[{RATE}]))"


def quantile(q: float, name: str) -> str:
    return f"histogram_quantile({q}, {rate(name + '_bucket', by='le, model_name')})"


def quantiles(name: str) -> dict[str, str]:
    """Queries of a histogram by their legends."""
    return {f"p{round(q * 100)} {{{{model_name}}}}": quantile(q, name) for q in (0.5, 0.9, 0.99)}


# Title, unit, and queries by their legends.
PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Time to first token", "s", quantiles("tahr_time_to_first_token_seconds")),
    ("Time between tokens", "s", quantiles("tahr_inter_token_latency_seconds")),
    ("Time of a request", "s", quantiles("tahr_request_seconds")),
    ("Time in the queue", "s", quantiles("tahr_request_queue_seconds")),
    (
        "Tokens per second",
        "short",
        {
            "generated {{model_name}}": rate("tahr_generation_tokens_total"),
            "prompts, computed {{model_name}}": rate("tahr_prefill_tokens_total"),
            "prompts, cached {{model_name}}": rate("tahr_prompt_tokens_cached_total"),
        },
    ),
    (
        "Sequences",
        "short",
        {
            "running {{model_name}}": f"sum by (model_name) (tahr_requests_running{{{MODEL}}})",
            "waiting {{model_name}}": f"sum by (model_name) (tahr_requests_waiting{{{MODEL}}})",
        },
    ),
    ("Choices by finish reason", "reqps", {"{{finished_reason}}": rate("tahr_requests_total", by="finished_reason")}),
    (
        "HTTP by route and status",
        "reqps",
        {"{{route}} {{status}}": rate("tahr_http_requests_total", WHERE, "route, status")},
    ),
    (
        "Refused, and WebSockets",
        "short",
        {
            "refused per second": f"sum(rate(tahr_admission_rejected_requests_total{{{WHERE}}}[{RATE}]))",
            "WebSockets": f"sum(tahr_websockets{{{WHERE}}})",
        },
    ),
    (
        "KV cache in use",
        "percentunit",
        {"{{model_name}}": f"max by (model_name) (tahr_kv_cache_usage_ratio{{{MODEL}}})"},
    ),
    (
        "Prompt tokens from the prefix cache",
        "percentunit",
        {
            "{{model_name}}": f"{rate('tahr_prefix_cache_saved_tokens_total')}"
            f" / {rate('tahr_prefix_cache_queried_tokens_total')}"
        },
    ),
    (
        "Power while models work",
        "watt",
        {"{{phase}} {{model_name}}": rate("tahr_energy_joules_total", by="phase, model_name")},
    ),
    (
        "Models",
        "short",
        {
            "loaded": f"sum(tahr_models_loaded{{{WHERE}}})",
            "asleep": f"sum(tahr_models_asleep{{{WHERE}}})",
            "loads that failed": f"sum(tahr_model_load_failures_total{{{WHERE}}})",
        },
    ),
)


def panel(number: int, title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    x, y = number % 3 * WIDTH, number // 3 * HEIGHT
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + i), "expr": query, "legendFormat": legend}
            for i, (legend, query) in enumerate(queries.items())
        ],
    }


def variable(name: str, label: str) -> dict[str, Any]:
    query = f"label_values(tahr_requests_running, {label})"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "definition": query,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def dashboard() -> dict[str, Any]:
    source = {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
    return {
        "title": "Tahr",
        "uid": "tahr",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, variable("instance", "instance"), variable("model", "model_name")]},
        "panels": [panel(number, *each) for number, each in enumerate(PANELS)],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
