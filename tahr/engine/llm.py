"""`LLM`: a model from a name to text, for scripts and the command line."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import Any, overload

from tahr.config import NEUTRAL_SAMPLING, EngineConfig, SamplingParams
from tahr.engine.assemble import Assembled, assemble
from tahr.engine.engine import Engine, Event
from tahr.engine.output import TextWriter
from tahr.engine.sequence import Sequence
from tahr.engine.stats import RequestStats
from tahr.errors import TemplateError

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished reply."""

    text: str
    token_ids: list[int]
    n_prompt_tokens: int
    n_cached_tokens: int
    finish_reason: str
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a reply; the last one carries the finish reason and the whole completion."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    completion: Completion | None = None


class LLM:
    """A loaded model. Replies to prompts and conversations, one by one, in batches, or as streams."""

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        quantization: str | None = None,
        progress: Any = None,
    ):
        parts: Assembled = assemble(model, config or EngineConfig(), quantization, progress)
        self.name = parts.name
        self.tokenizer = parts.tokenizer
        self.template = parts.template
        self.model_config = parts.model_config
        self.context_size = parts.engine.context_size
        self.sampling_defaults = parts.sampling.over(NEUTRAL_SAMPLING)
        self.load_log = parts.log
        self.backend_summary = parts.backend_summary
        self.engine: Engine = parts.engine
        self._texts: dict[int, list[str]] = {}

    # ---- whole replies ----------------------------------------------------------------------------------------

    @overload
    def generate(self, prompts: str, params: SamplingParams | None = None) -> Completion: ...
    @overload
    def generate(self, prompts: ListOf[str], params: SamplingParams | None = None) -> list[Completion]: ...
    def generate(
        self, prompts: str | ListOf[str], params: SamplingParams | None = None
    ) -> Completion | list[Completion]:
        """Continue a text, or several at once."""
        if isinstance(prompts, str):
            return self._complete([self._submit_text(prompts, params)])[0]
        return self._complete([self._submit_text(prompt, params) for prompt in prompts])

    @overload
    def chat(self, messages: ListOf[Message], params: SamplingParams | None = None, **variables: Any) -> Completion: ...
    @overload
    def chat(
        self, messages: ListOf[ListOf[Message]], params: SamplingParams | None = None, **variables: Any
    ) -> list[Completion]: ...
    def chat(
        self, messages: ListOf[Any], params: SamplingParams | None = None, **variables: Any
    ) -> Completion | list[Completion]:
        """Answer a conversation (a list of messages), or several at once; `variables` reach the chat template."""
        if messages and isinstance(messages[0], Mapping):
            return self._complete([self._submit_chat(messages, params, variables)])[0]
        return self._complete([self._submit_chat(each, params, variables) for each in messages])

    # ---- streams ----------------------------------------------------------------------------------------------

    def stream(self, prompt: str, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Continue a text piece by piece; closing the iterator stops the request."""
        return self._stream(self._submit_text(prompt, params))

    def stream_chat(
        self, messages: ListOf[Message], params: SamplingParams | None = None, **variables: Any
    ) -> Iterator[Chunk]:
        """Answer a conversation piece by piece; closing the iterator stops the request."""
        return self._stream(self._submit_chat(messages, params, variables))

    # ---- the ends ---------------------------------------------------------------------------------------------

    def render(self, messages: ListOf[Message], **variables: Any) -> str:
        """The prompt a conversation becomes."""
        if self.template is None:
            raise TemplateError(f"{self.name} has no chat template: use generate with a plain prompt (run --raw).")
        return self.template.render(messages, **variables)

    def encode_chat(self, messages: ListOf[Message], **variables: Any) -> list[int]:
        """The tokens of a rendered conversation. A template that writes its own BOS does not get a second one."""
        text = self.render(messages, **variables)
        bos = self.tokenizer.piece(self.tokenizer.bos_id) if self.tokenizer.bos_id is not None else ""
        return self.tokenizer.encode(text, add_special=not (bos and text.startswith(bos)))

    def close(self) -> None:
        """Stop whatever still runs."""
        for seq in [*self.engine.scheduler.running, *self.engine.scheduler.waiting]:
            self.engine.abort(seq)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside -----------------------------------------------------------------------------------------------

    def _submit_text(self, prompt: str, params: SamplingParams | None) -> Sequence:
        return self._submit(self.tokenizer.encode(prompt), params)

    def _submit_chat(self, messages: ListOf[Message], params: SamplingParams | None, variables: Any) -> Sequence:
        return self._submit(self.encode_chat(messages, **variables), params)

    def _submit(self, tokens: list[int], params: SamplingParams | None) -> Sequence:
        full = (params or SamplingParams()).over(self.sampling_defaults)
        seq = self.engine.submit(tokens, full, TextWriter(self.tokenizer, full.stop))
        self._texts[seq.id] = []
        return seq

    def _complete(self, sequences: list[Sequence]) -> list[Completion]:
        try:
            while not all(seq.done for seq in sequences):
                self._step()
            return [self._completion(seq) for seq in sequences]
        finally:
            self._forget(sequences)

    def _stream(self, seq: Sequence) -> Iterator[Chunk]:
        try:
            n_sent = 0
            while not seq.done:
                self._step()
                pieces, tokens = self._texts[seq.id], seq.tokens[seq.n_prompt :]
                if len(tokens) > n_sent and not seq.done:
                    yield Chunk("".join(pieces[n_sent:]), tokens[n_sent:])
                    n_sent = len(tokens)
            completion = self._completion(seq)
            yield Chunk(
                "".join(self._texts[seq.id][n_sent:]), completion.token_ids[n_sent:], seq.finish_reason, completion
            )
        finally:
            self._forget([seq])

    def _step(self) -> None:
        for event in self.engine.step():
            self._keep(event)

    def _keep(self, event: Event) -> None:
        if event.sequence.id in self._texts:
            self._texts[event.sequence.id].append(event.text)

    def _completion(self, seq: Sequence) -> Completion:
        if seq.error:
            raise seq.error
        text = "".join(self._texts[seq.id])
        stats = seq.stats
        reason = seq.finish_reason or "cancelled"
        return Completion(text, seq.tokens[seq.n_prompt :], seq.n_prompt, stats.n_cached_tokens, reason, stats)

    def _forget(self, sequences: list[Sequence]) -> None:
        for seq in sequences:
            self.engine.abort(seq)
            self._texts.pop(seq.id, None)
