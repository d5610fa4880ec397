"""How replies of llama.cpp's own routes look, in a stream and whole."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from tahr.server.http.errors import HttpError
from tahr.server.http.sse import HEADERS, KEEP_ALIVE, encode, event
from tahr.server.llamacpp.replies import (
    NativeChunk,
    NativeError,
    NativeProbability,
    NativeReply,
    NativeTimings,
    NativeTop,
)
from tahr.server.models.engine_port import EngineStream, PromptProgress
from tahr.server.replies.formatter import ChoiceOutput, ReplyOptions, Usage
from tahr.server.replies.logprobs import finite, shown
from tahr.text.replies.deltas import text_of

if TYPE_CHECKING:
    from tahr.engine.sampling.sampling_state import SampledToken
    from tahr.engine.sequences.stats import RequestStats
    from tahr.generation.outputs import Chunk, Completion
    from tahr.text.tokens.tokenizer import Tokenizer

STOP_TYPES = {"length": "limit", "abort": "none"}  # keys are finish reasons
NO_SLOT = -1  # places in the batch are not the client's business


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """A request's options for its reply."""

    n_prompt_tokens: list[int]  # counts by prompt
    prompt_texts: list[str]  # made before the reply, which ends on the event loop
    settings: dict[str, Any]  # repeated in the reply
    fields: list[str]  # fields of the reply; none: all
    return_tokens: bool = False


class NativeFormatter:
    """`content` and what llama.cpp's server tells beside it."""

    headers: Mapping[str, str] = HEADERS
    keep_alive = KEEP_ALIVE

    def __init__(self, requested: NativeOptions, tokenizer: "Tokenizer", options: ReplyOptions):
        self.id = f"cmpl-{random.getrandbits(96):024x}"  # no secret: asking the system for one takes long
        self.has_logprobs = options.logprobs
        self._requested = requested
        self._tokenizer = tokenizer
        self._options = options
        self._n_tokens = [0] * len(requested.prompt_texts)
        self._has_new_line = [False] * len(requested.prompt_texts)

    # ---- a stream ---------------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        return b""

    def is_heavy(self, choice: int) -> bool:
        return False

    def chunk(self, choice: int, chunk: "Chunk", stream: EngineStream) -> bytes:
        tokens = chunk.token_ids
        if chunk.finish_reason == "stop" and tokens and self._tokenizer.is_eos(tokens[-1]):
            tokens = tokens[:-1]
        self._n_tokens[choice] += len(tokens)
        self._has_new_line[choice] |= "\n" in chunk.text
        if not tokens and not chunk.text:
            return b""
        made = NativeChunk(
            index=choice,
            content=chunk.text,
            tokens=tokens,
            stop=False,
            id_slot=NO_SLOT,
            tokens_predicted=self._n_tokens[choice],
            tokens_evaluated=self._requested.n_prompt_tokens[choice],
        )
        if self.has_logprobs:
            made.completion_probabilities = self._probabilities(shown(self._tokenizer, chunk))
        return event(encode(made))

    def closing(self, choice: int, chunk: "Chunk") -> bytes:
        assert chunk.completion
        last = self._last(choice, chunk.completion, "", [], self._has_new_line[choice])
        return event(encode(self._kept(last)))

    def ending(self, usage: Usage) -> bytes:
        return b""

    def failure(self, error: HttpError) -> bytes:
        return b"error: %b\n\n" % encode(NativeError.of(error, self.id).error)

    def progress(self, progress: PromptProgress, elapsed_s: float) -> bytes:
        facts = {"total": progress.n_tokens, "cache": progress.n_cached, "processed": progress.n_computed}
        facts["time_ms"] = round(elapsed_s * 1e3)
        made = {"index": 0, "content": "", "tokens": [], "stop": False, "id_slot": NO_SLOT, "prompt_progress": facts}
        return event(encode(made))

    # ---- whole ------------------------------------------------------------------------------------------------

    def whole(self, outputs: Sequence[ChoiceOutput], streams: Sequence[EngineStream], usage: Usage) -> Any:
        made = [self._kept(self._choice(i, output)) for i, output in enumerate(outputs)]
        return made if len(made) > 1 else made[0]

    def _choice(self, index: int, output: ChoiceOutput) -> NativeReply:
        text = text_of(output.deltas)
        assert output.completion
        tokens = list(output.completion.token_ids) if self._requested.return_tokens else []
        made = self._last(index, output.completion, text, tokens, "\n" in text)
        if self.has_logprobs:
            made.completion_probabilities = self._probabilities(output.logprobs)
        return made

    def _last(
        self, index: int, completion: "Completion", text: str, tokens: list[int], has_new_line: bool
    ) -> NativeReply:
        stats = completion.stats
        n_prompt = self._requested.n_prompt_tokens[index]
        n_tokens = stats.n_generated_tokens
        return NativeReply(
            index=index,
            content=text,
            tokens=tokens,
            stop=True,
            id_slot=NO_SLOT,
            tokens_predicted=n_tokens,
            tokens_evaluated=n_prompt,
            tokens_cached=n_prompt + n_tokens,
            model=self._options.model,
            prompt=self._requested.prompt_texts[index],
            generation_settings=self._requested.settings,
            has_new_line=has_new_line,
            truncated=False,
            stop_type=stop_type(completion),
            stopping_word=completion.matched_stop or "",
            timings=timings_of(stats),
        )

    def _kept(self, reply: NativeReply) -> Any:
        """The fields that were asked for, those inside others by paths."""
        if not self._requested.fields:
            return reply
        facts = msgspec.to_builtins(reply)
        found = {path: inside(facts, path.split("/")) for path in self._requested.fields}
        return {path: value for path, value in found.items() if value is not UNSET}

    def _probabilities(self, samples: "Sequence[SampledToken]") -> list[NativeProbability]:
        def facts(token: int, logprob: float | None) -> tuple[int, str, list[int], float]:
            data = self._tokenizer.token_bytes(token)
            return token, data.decode("utf-8", "replace"), list(data), finite(logprob)

        return [
            NativeProbability(
                *facts(sample.token, sample.logprob), [NativeTop(*facts(*top)) for top in sample.top_logprobs]
            )
            for sample in samples
        ]


def inside(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return UNSET
        value = value[name]
    return value


def stop_type(completion: "Completion") -> str:
    if completion.matched_stop:
        return "word"
    return STOP_TYPES.get(completion.finish_reason, "eos")


def timings_of(stats: "RequestStats") -> NativeTimings:
    n_prompt = stats.n_prompt_tokens - stats.n_cached_tokens
    n_tokens = stats.n_generated_tokens
    prompt_ms = stats.prefill_s * 1e3
    predicted_ms = stats.decode_s * 1e3
    return NativeTimings(
        cache_n=stats.n_cached_tokens,
        prompt_n=n_prompt,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=prompt_ms / max(1, n_prompt),
        prompt_per_second=stats.prompt_tokens_per_s,
        predicted_n=n_tokens,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=stats.ms_per_token,
        predicted_per_second=stats.tokens_per_s,
    )
