"""The one interface through which metrics, logs, traces and dumps see requests."""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tahr.server.http.records import MIXED, GenerationRecord, RecordingRecord, RequestRecord, SpeechRecord

if TYPE_CHECKING:
    from tahr.engine.sequences.stats import RequestStats
    from tahr.generation.outputs import Chunk

log = logging.getLogger("tahr.server")

Hook = Callable[..., None]


class Observer:
    """Its hooks run on the event loop and must not block. One that is not overridden costs nothing."""

    def generation_started(self, record: GenerationRecord) -> None: ...

    def first_token(self, record: GenerationRecord, seconds: float) -> None:
        """`seconds` is the time to first token."""

    def next_tokens(self, record: GenerationRecord, n_tokens: int, seconds_each: float) -> None:
        """Tokens of a choice after its first, with the mean time from one to the next."""

    def choice_finished(self, record: GenerationRecord, index: int, stats: "RequestStats") -> None:
        """`index` counts the choices of one prompt."""

    def generation_finished(self, record: GenerationRecord, seconds: float) -> None: ...
    def recording_finished(self, record: RecordingRecord) -> None: ...
    def speech_finished(self, record: SpeechRecord) -> None: ...
    def request_finished(self, record: RequestRecord) -> None: ...
    def close(self) -> None: ...


class Observers:
    """All observers of a server. What one of them does wrong never fails a request."""

    def __init__(self, members: Sequence[Observer]):
        self._members = list(members)
        self._hooks = {name: self._overridden(name) for name, value in vars(Observer).items() if callable(value)}
        self._next_tokens = self._hooks["next_tokens"]  # runs for every token
        self._failed: set[Hook] = set()

    def _overridden(self, name: str) -> list[Hook]:
        default = getattr(Observer, name)
        return [getattr(each, name) for each in self._members if getattr(type(each), name) is not default]

    def notify(self, hook: str, *facts: Any) -> None:
        """Call one hook of every observer that has it."""
        for method in self._hooks[hook]:
            try:
                method(*facts)
            except Exception as error:
                self._report(method, error)

    def _report(self, method: Hook, error: Exception) -> None:
        if method not in self._failed:  # once: the next request would say the same
            self._failed.add(method)
            log.error("%s failed (%s); requests go on without it.", method.__qualname__, type(error).__name__)

    def close(self) -> None:
        self.notify("close")

    # ---- one generation ---------------------------------------------------------------------------------------

    def chunk(self, record: GenerationRecord, choice: int, chunk: "Chunk") -> None:
        """A chunk of a choice has come. Runs for every token."""
        n_tokens = len(chunk.token_ids)
        if record.texts is not None:
            record.texts.setdefault(choice, []).append(chunk.text)
        if chunk.finish_reason:
            return self._last_chunk(record, choice, chunk)
        return self._tokens(record, choice, n_tokens) if n_tokens else None

    def _last_chunk(self, record: GenerationRecord, choice: int, chunk: "Chunk") -> None:
        n_tokens = len(chunk.token_ids)
        reason = chunk.finish_reason or ""
        stats = chunk.completion.stats if chunk.completion else None
        record.n_reasoning += chunk.completion.n_reasoning_tokens if chunk.completion else 0
        if n_tokens and stats and stats.first_token_at and choice not in record.token_at:
            self._whole_choice(record, choice, n_tokens, stats)
        elif n_tokens:
            self._tokens(record, choice, n_tokens)
        record.finishes[choice] = reason
        record.finish = reason if record.finish in ("", reason) else MIXED
        if stats:
            self._choice_finished(record, chunk.index, stats)

    def _tokens(self, record: GenerationRecord, choice: int, n_tokens: int) -> None:
        now = perf_counter()
        before = record.token_at.get(choice)
        if before is not None:
            for method in self._next_tokens:
                try:
                    method(record, n_tokens, (now - before) / n_tokens)
                except Exception as error:
                    self._report(method, error)
        elif not record.token_at:
            self.notify("first_token", record, now - record.arrived)
        record.token_at[choice] = now
        record.n_tokens += n_tokens

    def _whole_choice(self, record: GenerationRecord, choice: int, n_tokens: int, stats: "RequestStats") -> None:
        """A choice that came as one chunk: the engine knows when its tokens were made."""
        if not record.token_at:
            self.notify("first_token", record, stats.first_token_at - record.arrived)
        if n_tokens > 1:
            self.notify("next_tokens", record, n_tokens - 1, stats.decode_s / (n_tokens - 1))
        record.token_at[choice] = stats.last_token_at
        record.n_tokens += n_tokens

    def _choice_finished(self, record: GenerationRecord, index: int, stats: "RequestStats") -> None:
        record.stats.append(stats)
        if index == 0:
            record.n_cached += stats.n_cached_tokens
        self.notify("choice_finished", record, index, stats)
