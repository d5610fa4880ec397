"""Two lines of log per request that generates, which never hold a text."""

import logging
import re
from collections.abc import Mapping

from tahr.server.http.records import GenerationRecord
from tahr.server.observe.observer import Observer

log = logging.getLogger("tahr.server")

PLAIN = re.compile(r'[^\s"=]+\Z')


class RequestLog(Observer):
    """A `start` and a `done` line, joined by their id."""

    def generation_started(self, record: GenerationRecord) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("start %s", logfmt(start_facts(record)))

    def generation_finished(self, record: GenerationRecord, seconds: float) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("done %s", logfmt(done_facts(record, seconds)))


def start_facts(record: GenerationRecord) -> dict[str, object]:
    return {
        "id": record.number,
        "model": record.model,
        "route": record.route,
        "reply": record.id,
        "prompts": len(record.prompts),
        "prompt_tokens": record.n_prompt_tokens,
        "n": record.params.n,
        "max_tokens": record.params.max_tokens,
        "stream": record.stream,
    }


def done_facts(record: GenerationRecord, seconds: float) -> dict[str, object]:
    """Rates are those of the choice that finished last."""
    stats = record.stats[-1] if record.stats else None
    return {
        "id": record.number,
        "prompt_tokens": record.n_prompt_tokens,
        "cached_tokens": record.n_cached,
        "tokens": record.n_tokens,
        "prefill_tokens_per_s": round(stats.prompt_tokens_per_s if stats else 0.0, 1),
        "decode_tokens_per_s": round(stats.tokens_per_s if stats else 0.0, 1),
        "ms": round(seconds * 1e3),
        "finish": record.finish,
    }


def logfmt(facts: Mapping[str, object]) -> str:
    """`name=value` pairs; no value can hold a line break or pass for another pair."""
    return " ".join(f"{name}={quoted(str(value))}" for name, value in facts.items())


def quoted(value: str) -> str:
    if value.isprintable() and PLAIN.match(value):
        return value
    return '"' + value.encode("unicode_escape").decode().replace('"', '\\"') + '"'
