"""An engine without a model: its replies follow from the prompt, and words in the prompt make it misbehave.

`FAIL@n` fails after n tokens, `HANG@n` stops there for good, `SLOW` takes its time, `REFUSE` is refused at the door.
Tokens are bytes, so every text is its own tokenisation.
"""

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from time import perf_counter
from typing import Any

import httpx
import numpy as np

from tahr.config import NEUTRAL_SAMPLING, SamplingParams
from tahr.engine.sampling.sampling_state import SampledToken
from tahr.engine.sequences.adapter_stack import LoadedAdapter
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.stats import RequestStats, StatsSnapshot
from tahr.errors import AdapterError, ConfigError, GenerateError
from tahr.generation.delivery import OnChunk
from tahr.generation.outputs import Chunk, Completion
from tahr.generation.writers import ReplyWriter, TextWriter, line_limits
from tahr.library.embeddings import EmbeddingOptions
from tahr.library.inputs.text_inputs import TextInputs
from tahr.server.lifecycle import HttpServer
from tahr.server.models.engine_port import PromptProgress
from tahr.server.models.registry import ServedModel
from tahr.server.state.settings import Settings
from tahr.server.state.state import MakeModel
from tahr.server.status.servers import Announcement
from tahr.text.replies.stream import Detokenizer
from tahr.text.templates.chat import ChatTemplate
from tahr.text.tool_calls.parser import ReplyFormat

BOS, EOS, N_VOCAB = 256, 257, 258
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if mood is defined %}({{ mood }}){% endif %}"
    "{% if enable_thinking is defined and enable_thinking %}(think){% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class ByteTokenizer:
    """A token per byte, and one for each end."""

    n_vocab, bos_id, eos_id, drops_first_space, max_token_bytes = N_VOCAB, BOS, EOS, False, 4
    prefix, suffix, between = (BOS,), (), (EOS,)

    def swap_special(self, text: str, new: Callable[[int], str]) -> str:
        return text  # it reads no special tokens

    def cannot_fit(self, text: str, n_tokens: int) -> bool:
        return len(text) > n_tokens * self.max_token_bytes

    def beginning(self, text: str, n_tokens: int) -> str:
        return text[:n_tokens]

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, most: int = sys.maxsize
    ) -> list[int]:
        return [BOS] * add_special + list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in ids if not (skip_special and self.is_special(i))).decode(
            "utf-8", "replace"
        )

    def piece(self, token: int) -> str:
        return {BOS: "<s>", EOS: "</s>"}.get(token) or chr(token)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else self.piece(token).encode()

    def is_special(self, token: int) -> bool:
        return token >= 256

    def is_eos(self, token: int) -> bool:
        return token == EOS

    def detokenizer(
        self, *, skip_special: bool = True, continuing: bool = False, shown: frozenset[int] = frozenset()
    ) -> Detokenizer:
        return Detokenizer(self, skip_special=skip_special, shown=shown)  # type: ignore[arg-type]

    def split_special(self, text: str) -> list[str | int]:
        return [text] if text else []

    def special_tokens_in(self, marks: tuple[str, ...]) -> frozenset[int]:
        return frozenset()


def reply_to(prompt: str, index: int = 0) -> str:
    """What the engine answers: something every prompt has its own of, with characters of several bytes."""
    last = prompt.removesuffix("[assistant]").strip().split("]")[-1]
    return f"You said “{last}”, naïvely" + (f" ({index})" if index else "")


@dataclass
class ScriptedReply:
    engine: "ScriptedEngine"
    tokens: list[int]
    params: SamplingParams
    reply_format: ReplyFormat | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    background: bool = False
    aborted: bool = False
    over: bool = False
    ends_early: bool = False
    n_polls: int = 0

    def __post_init__(self) -> None:
        self.text = self.engine.tokenizer.decode(self.tokens)
        self.chunks = self.run()
        self.stats.n_prompt_tokens = len(self.tokens)
        self.stats.n_cached_tokens = 3 if self.params.cache_prompt and len(self.tokens) > 3 else 0

    def end_early(self) -> None:
        self.ends_early = True

    def abort(self) -> None:
        self.aborted = self.aborted or not self.over
        self.engine.live.discard(id(self))

    @property
    def progress(self) -> PromptProgress:
        return PromptProgress(len(self.tokens), 3, min(len(self.tokens), 4 + self.n_polls))

    @property
    def chunk_ends(self) -> list[tuple[int, float]]:
        """A step more for everyone who looks."""
        self.n_polls += 1
        return [(end, perf_counter()) for end in range(5, min(len(self.tokens), 5 + self.n_polls))]

    @property
    def prompt_logprobs(self) -> list[SampledToken]:
        n_top = self.params.prompt_logprobs
        return [] if n_top is None else [pick_of(token, n_top) for token in self.tokens[1:]]

    async def read(self, on_chunk: OnChunk) -> bool:
        async for chunk in self.chunks:
            if not on_chunk(chunk):
                return True
        return False

    async def run(self) -> AsyncIterator[Chunk]:
        answers = [self.answer(index) for index in range(self.params.n)]
        while answers:
            for answer in list(answers):
                chunk = next(answer)
                await self.wait()
                yield chunk
                if chunk.finish_reason:
                    answers.remove(answer)
        self.over = True
        self.engine.live.discard(id(self))

    def answer(self, index: int) -> Iterator[Chunk]:
        """One token at a time, as an engine does it."""
        text = self.engine.script_for(self.text, index)
        params, made = self.params, [*text.encode(), EOS]
        writer = self.writer()
        fail_at = self.word("FAIL")
        for n, token in enumerate(cycle(made)):
            if n == fail_at:
                raise GenerateError("The script says so.")
            if self.ends_early:
                yield Chunk(writer.flush(), [], "abort", self.completion("abort", writer), index)
                return
            self.stats.n_generated_tokens = n + 1
            ends = token == EOS and not params.ignore_eos
            deltas = () if ends else writer.push(token)
            is_full = n + 1 == params.max_tokens or writer.is_cut
            reason = "length" if is_full else "stop" if ends or writer.stopped else None
            if reason and not writer.stopped:
                deltas += writer.flush()
            picks = () if params.logprobs is None else (pick_of(token, params.logprobs),)
            completion = self.completion(reason, writer) if reason else None
            yield Chunk(deltas, [token], reason, completion, index, picks)
            if reason:
                return

    def writer(self) -> TextWriter | ReplyWriter:
        """As an engine makes it."""
        form, tokenizer, params = self.reply_format, self.engine.tokenizer, self.params
        stops, lines = params.stop, line_limits(params)
        if form is None or form.is_plain:
            return TextWriter(tokenizer, stops, lines=lines)
        return ReplyWriter(tokenizer, stops, form, lines=lines)

    def completion(self, reason: str, writer: TextWriter | ReplyWriter | None = None) -> Completion:
        stats = self.stats
        return Completion(
            *("", [], stats.n_prompt_tokens, stats.n_cached_tokens, reason, stats),
            n_reasoning_tokens=writer.n_reasoning_tokens if writer else 0,
            matched_stop=writer.matched_stop if writer else None,
        )

    def word(self, name: str) -> int:
        found = re.search(rf"{name}@(\d+)", self.text) if self.engine.obeys_words else None
        return int(found[1]) if found else -1

    async def wait(self) -> None:
        self.engine.stats.steps += 1
        if self.stats.n_generated_tokens - 1 == self.word("HANG"):
            await asyncio.Event().wait()
        await asyncio.sleep(0.02 if self.engine.obeys_words and "SLOW" in self.text else 0)


def pick_of(token: int, n_top: int) -> SampledToken:
    """A made-up log-probability; the likeliest tokens are the neighbours."""
    return SampledToken(token, -token / 256, tuple(((token + i) % 256, -i - token / 256) for i in range(n_top)))


class ScriptedEngine:
    """What the server sees of an engine."""

    obeys_words = True  # words in the prompt make it misbehave

    def __init__(self, name: str = "scripted", context_size: int = 512, template: str | None = TEMPLATE):
        self.name, self.context_size, self.backend_summary = name, context_size, "a script"
        self.tokenizer: Any = ByteTokenizer()
        self.template = None if template is None else ChatTemplate(template)
        self.sampling_defaults = replace(NEUTRAL_SAMPLING, temperature=0.5, max_tokens=300)
        self.stats, self.n_bytes, self.n_device_bytes = StatsSnapshot(), 1000, 0
        self.n_weight_bytes = 400
        self.n_host_weight_bytes = 0
        self.reads_recordings = False
        self.speaking = None
        self.inputs = TextInputs(self.tokenizer, None, context_size, vector_width=4)
        self.alive, self.cpu_s, self.warms = True, 0.0, False
        self.weights_changed = False
        self.fault = ""
        self.asleep = self.cannot_sleep = self.cannot_wake = False
        self.live: set[int] = set()
        self.scripts: list[str] = []  # what it replies next, where that does not follow from the prompt
        self.seen: list[ScriptedReply] = []
        self.loaded: dict[str, LoadedAdapter] = {}

    def script_for(self, prompt: str, index: int) -> str:
        return self.scripts.pop(0) if self.scripts else reply_to(prompt, index)

    async def submit(
        self,
        resolved: ResolvedRequest,
        whole: bool = False,
    ) -> ScriptedReply:
        assert not self.asleep, "a request for a model that sleeps"
        reply = ScriptedReply(self, list(resolved.tokens), resolved.params, resolved.reply_format)
        if self.obeys_words and "REFUSE" in reply.text:
            raise ConfigError("top_k is refused by the script.")
        reply.background = resolved.background
        self.live.add(id(reply))
        self.seen.append(reply)
        return reply

    def adapters(self) -> list[LoadedAdapter]:
        return list(self.loaded.values())

    async def add_adapter(self, name: str, path: str, scale: float, replaces: bool = False) -> LoadedAdapter:
        if "bad" in path:
            raise AdapterError("The adapter is refused by the script.")
        if name in self.loaded and not replaces:
            raise ConfigError(f"There is an adapter {name!r} already.")
        self.loaded[name] = LoadedAdapter(name, path, f"digest of {path}", 1, scale, 4, 100, "")
        return self.loaded[name]

    async def remove_adapter(self, name: str) -> LoadedAdapter:
        return self.loaded.pop(name)

    async def embed(
        self, texts: Sequence[list[int]], options: EmbeddingOptions, lora: Any = (), background: bool = False
    ) -> Any:
        pooling = len(options.pooling or "")
        rows = np.array([[len(text), sum(text), pooling, 1] for text in texts], np.float32)[:, : options.dimensions]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True) if options.normalize else rows

    def warm_when_idle(self) -> None:
        self.warms = True

    async def sleep(self) -> int:
        assert not self.live, "put to sleep while a request runs"
        if self.cannot_sleep:
            raise ConfigError("The script does not sleep.")
        self.asleep = True
        return self.n_bytes - self.n_weight_bytes

    async def wake(self) -> None:
        if self.cannot_wake:
            raise GenerateError("The script does not wake.")
        self.asleep = False

    def snapshot(self) -> StatsSnapshot:
        return replace(self.stats, requests_running=len(self.live))

    async def close(self) -> None:
        self.alive = False


@contextmanager
def serving(
    *engines: Any,
    settings: Settings | None = None,
    load: Callable[[], list[ServedModel]] | None = None,
    make_model: MakeModel | None = None,
    announcement: Announcement | None = None,
) -> Iterator[HttpServer]:
    """A server on a free port, on a thread with an event loop of its own."""
    models = [ServedModel((engine.name,), engine) for engine in engines]
    ready = threading.Event()
    requested, loads = settings or Settings(port=0, log_interval_s=0), load or (lambda: models)
    if requested.drain_timeout_s == Settings().drain_timeout_s:
        requested = replace(requested, drain_timeout_s=10.0)  # where a request hangs, a test waits for it
    running = HttpServer(requested, loads, lambda *_: ready.set(), make_model, announcement)
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await running.serve()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert load or ready.wait(10)
        yield running
    finally:
        with suppress(RuntimeError):  # it has ended
            loops[0].call_soon_threadsafe(running.drain)
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def client_of(
    *engines: Any, settings: Settings | None = None, headers: Mapping[str, str] | None = None
) -> Iterator[httpx.Client]:
    """A client of a server with these engines."""
    with (
        serving(*engines, settings=settings) as server,
        httpx.Client(base_url=server.address, headers=headers, timeout=30) as made,
    ):
        yield made
