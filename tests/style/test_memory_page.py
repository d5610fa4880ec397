"""The bounds that docs/memory.md names are those of the code."""

from math import log2
from pathlib import Path

from tahr.backends.api.lora import MAX_ADAPTERS, MAX_RANK
from tahr.config import EngineConfig
from tahr.engine.step_traces import MAX_BYTES
from tahr.grammar.compiler import MAX_CACHED, MAX_CACHED_BYTES, MAX_SEEN
from tahr.grammar.spec import MAX_SOURCE_BYTES
from tahr.grammar.workers import SLOW_CPU_S
from tahr.loading.capacity import MOST_CHECKPOINTS
from tahr.server.http.protocol import MAX_HEAD_BYTES
from tahr.server.http.rate_limit import MAX_BUCKETS
from tahr.server.observe.request_dumps import MAX_DUMPS
from tahr.server.replies.params import MAX_CHARS, MAX_CHOICES
from tahr.server.replies.prompts import MAX_PROMPTS
from tahr.server.replies.served import MAX_LOGPROB_ENTRIES, MAX_OUTPUT_ENTRIES
from tahr.server.state.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "memory.md"


def test_bounds_are_those_of_the_code() -> None:
    """By a part of the row: the bounds it must show."""
    server = Settings()
    mib = 1 << 20
    bounds = {
        "its body": (f"{server.max_body_bytes // mib} MiB",),
        "headers, trailers": (f"{MAX_HEAD_BYTES // 1024} KiB",),
        "requests in flight": (f"{server.max_requests:,}",),
        "choices, prompts": (f"{MAX_CHOICES}, {MAX_PROMPTS:,}, ", f"of {MAX_CHARS:,} letters"),
        "log-probabilities": (f"2^{log2(MAX_LOGPROB_ENTRIES):.0f}", f"2^{log2(MAX_OUTPUT_ENTRIES):.0f}"),
        "does not read": (f"{server.reader_timeout_s:.0f} s",),
        "its grammar": (f"{MAX_SOURCE_BYTES // mib} MiB", f"{SLOW_CPU_S:.0f} s", f"{MAX_SEEN:,} tokens"),
        "drafts": (f"{EngineConfig.RANGES['spec_tokens'].high:.0f} tokens",),
        "compiled grammars": (f"{MAX_CACHED}, ", f"{MAX_CACHED_BYTES // mib} MiB"),
        "| sessions": (f"{server.session_max_entries} of {server.session_max_tokens:,}",),
        "stored responses": (f"{server.response_max_entries:,}", f"{server.response_max_bytes // mib} MiB"),
        "adapters | 5": (f"{MAX_ADAPTERS} of rank up to {MAX_RANK}",),
        "rate limits": (f"{MAX_BUCKETS:,}",),
        "request dumps": (f"{MAX_DUMPS:,} folders", f"{MAX_BYTES // mib} MiB"),
        "checkpoints of states": (f"at most {MOST_CHECKPOINTS}",),
    }
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    shown = {part: next(row for row in rows if part in row) for part in bounds}
    assert {part: row for part, row in shown.items() if not all(bound in row for bound in bounds[part])} == {}
