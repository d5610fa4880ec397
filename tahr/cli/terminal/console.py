"""Notes on stderr for people, and the two forms of replies on stdout."""

import json
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from tahr.cli.terminal.wrapping import MIN_COLUMNS, Wrapping, columns_of
from tahr.errors import printable

if TYPE_CHECKING:
    from tahr import Completion
    from tahr.text.replies.deltas import ToolCall

STDERR = 2
DIM = "\x1b[2m{}\x1b[22m"
# A reply may hold terminal escape sequences; a terminal gets only line breaks and tabs of them.
CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def note(text: str) -> None:
    """One line for the person at the keyboard, which a terminal shows whole words of; stdout is kept for replies."""
    columns = columns_of(STDERR)
    shown = printable(text)
    if len(shown) >= columns >= MIN_COLUMNS:
        lines = [
            textwrap.wrap(line, columns - 1, break_long_words=False, break_on_hyphens=False)
            for line in shown.split("\n")
        ]
        shown = "\n".join("\n".join(each) for each in lines)
    print(shown, file=sys.stderr, flush=True)


def counted(n: int, what: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def values_line(values: Mapping[str, Any]) -> str:
    """`name value` pairs as one line."""
    return ", ".join(f"{name} {f'{value:g}' if isinstance(value, float) else value}" for name, value in values.items())


def summary(completion: "Completion") -> str:
    """The line after a reply: how long prompt and reply were, and how fast."""
    stats = completion.stats
    cut = " | cut at the longest reply (-n)" if completion.finish_reason == "length" else ""
    cached = f", {completion.n_cached_tokens} cached" if completion.n_cached_tokens else ""
    return (
        f"[prompt {counted(completion.n_prompt_tokens, 'token')}{cached}{speed(stats.prompt_tokens_per_s)} | "
        f"reply {counted(stats.n_generated_tokens, 'token')}{speed(stats.tokens_per_s)} | "
        f"first token after {stats.first_token_s:.2f} s{cut}]"
    )


def speed(tokens_per_s: float) -> str:
    """A rate, where there was enough to measure one."""
    return f", {tokens_per_s:.1f} tok/s" if tokens_per_s else ""


def readable(call: "ToolCall") -> str:
    """A call as people write it; arguments that are no JSON object are shown as they are."""
    try:
        values = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return f"{call.name}({call.arguments})"
    return (
        f"{call.name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in values.items())})"
    )


class ChatOutput(Protocol):
    """Where a conversation is written."""

    def ready(self, model: str, backend: str) -> None: ...
    def user(self, content: str) -> None: ...
    def piece(self, text: str) -> None: ...
    def thought(self, text: str) -> None: ...
    def done(self, completion: "Completion") -> None: ...
    def stopped(self, n_tokens: int | None) -> None: ...
    def failed(self, message: str) -> None: ...
    def cleared(self) -> None: ...
    def leave(self, reason: str) -> None: ...


class TextOutput:
    """The reply itself, as it comes."""

    def __init__(self, stats: bool, thinking: bool = True):
        self._stats = stats
        self._shows_thinking = thinking
        self._thinks = False  # the thinking is being shown
        self._ends_line = True
        self._terminal = sys.stdout.isatty()
        self._wrap = Wrapping(lambda: columns_of(sys.stdout.fileno()))
        self._wrap_thought = Wrapping(lambda: columns_of(sys.stderr.fileno()))

    def ready(self, model: str, backend: str) -> None:
        pass

    def user(self, content: str) -> None:
        self._ends_line = True
        self._wrap.begin_message()
        self._wrap_thought.begin_message()

    def thought(self, text: str) -> None:
        """Thinking is no reply: it goes to stderr, dimmed where that is a terminal."""
        if not text or not self._shows_thinking:
            return
        self._thinks = True
        shown = text.translate(CONTROL)
        sys.stderr.write(DIM.format(self._wrap_thought(shown)) if sys.stderr.isatty() else shown)
        sys.stderr.flush()

    def _end_thought(self) -> None:
        if self._thinks:
            self._thinks = False
            self._wrap_thought.begin_line()
            note("\n")

    def piece(self, text: str) -> None:
        if not text:
            return
        self._end_thought()
        sys.stdout.write(self._wrap(text.translate(CONTROL)) if self._terminal else text)
        sys.stdout.flush()
        self._ends_line = text.endswith("\n")

    def done(self, completion: "Completion") -> None:
        self._end_thought()
        self._end_line()
        for call in completion.tool_calls:
            self.piece(readable(call) + "\n")
        if self._stats:
            note(summary(completion))

    def stopped(self, n_tokens: int | None) -> None:
        self._end_thought()
        self._end_line()
        note("[stopped]" if n_tokens is None else f"[stopped after {counted(n_tokens, 'token')}]")

    def failed(self, message: str) -> None:
        self._end_thought()
        self._end_line()

    def cleared(self) -> None:
        note("The conversation is empty again.")

    def leave(self, reason: str) -> None:
        pass

    def _end_line(self) -> None:
        if not self._ends_line:
            self.piece("\n")


class BenchOutput(TextOutput):
    """How fast a reply came, in place of the reply."""

    def thought(self, text: str) -> None:
        pass

    def piece(self, text: str) -> None:
        pass

    def done(self, completion: "Completion") -> None:
        print(summary(completion), flush=True)


class JsonlOutput:
    """One JSON object per line on stdout, for programs."""

    def __init__(self, stats: bool, thinking: bool = True):
        self._stats = stats
        self._shows_thinking = thinking
        self._turn = 0
        self._begin()

    def ready(self, model: str, backend: str) -> None:
        self._write("ready", model=model, backend=backend)

    def user(self, content: str) -> None:
        self._turn += 1
        self._begin()
        self._write("user", turn=self._turn, content=content)

    def piece(self, text: str) -> None:
        self._pieces.append(text)

    def thought(self, text: str) -> None:
        self._thoughts.append(text)

    def done(self, completion: "Completion") -> None:
        more: dict[str, Any] = {}
        if completion.tool_calls:
            more["tool_calls"] = [asdict(call) for call in completion.tool_calls]
        self._assistant(completion.finish_reason, completion.stats.n_generated_tokens, **more)
        if self._stats:
            note(summary(completion))

    def stopped(self, n_tokens: int | None) -> None:
        self._assistant("cancelled", n_tokens)

    def failed(self, message: str) -> None:
        self._assistant("error", 0, error=message)

    def cleared(self) -> None:
        self._write("clear")

    def leave(self, reason: str) -> None:
        self._write("exit", reason=reason)

    def _begin(self) -> None:
        self._pieces: list[str] = []
        self._thoughts: list[str] = []
        self._began = time.monotonic()

    def _assistant(self, finish_reason: str, n_tokens: int | None, **more: Any) -> None:
        reasoning = "".join(self._thoughts)
        if reasoning and self._shows_thinking:
            more["reasoning"] = reasoning
        self._write(
            "assistant",
            turn=self._turn,
            content="".join(self._pieces),
            finish_reason=finish_reason,
            n_tokens=n_tokens,
            chunk_count=len(self._pieces),
            ms=round((time.monotonic() - self._began) * 1000),
            **more,
        )

    def _write(self, event: str, **facts: Any) -> None:
        sys.stdout.write(json.dumps({"event": event, **facts}, ensure_ascii=False) + "\n")
        sys.stdout.flush()


OUTPUTS: dict[str, type[TextOutput] | type[JsonlOutput]] = {"text": TextOutput, "jsonl": JsonlOutput}
