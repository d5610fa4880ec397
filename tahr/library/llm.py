"""`LLM`: a model from a name to text, for scripts and the command line."""

import threading
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from functools import lru_cache
from typing import Any, NoReturn, overload

from tahr.backends.api import Floats
from tahr.config import EngineConfig, SamplingParams, precedence
from tahr.engine.builder import Assembled, assemble
from tahr.engine.detokenize import TextWriter, has_text
from tahr.engine.engine import Engine, Event
from tahr.engine.stats import StatsSnapshot
from tahr.errors import TahrError, TemplateError
from tahr.grammar.compiler import GrammarCompiler
from tahr.grammar.state import GrammarState
from tahr.library.arguments import (
    Message,
    Params,
    Prompt,
    conversations_of,
    engine_config,
    messages_of,
    one_each,
    one_prompt,
    prompts_of,
    sampling_params,
)
from tahr.library.embeddings import EmbeddingJob, Pooling
from tahr.library.outputs import Chunk, Completion, Request
from tahr.library.progress_bar import Bar
from tahr.library.score import SCORING, Score, ScoringPrompt
from tahr.library.structured.response_format import ResponseFormat, response_format_of
from tahr.text.chat import ChatTemplate
from tahr.text.prompt import encode_chat

__all__ = ["LLM", "Chunk", "Completion", "Message", "Params"]

Texts = str | ListOf[str | list[int]]


class LLM:
    """A loaded model. Replies to prompts and conversations, one by one, in batches, or as streams.

    Threads may share it: whichever of them steps advances the requests of all. A forked process may not.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        quantization: str | None = None,
        progress: Any = None,
        **settings: Any,  # the fields of EngineConfig, where there is no config
    ):
        parts: Assembled = assemble(model, engine_config(config, settings), quantization, progress)
        self.name = parts.name
        self.tokenizer = parts.tokenizer
        self.template = parts.template
        self.model_config = parts.model_config
        self.context_size = parts.engine.context_size
        self.sampling_defaults = precedence(parts.sampling)
        self.load_log = parts.log
        self.backend_summary = parts.backend_summary
        self.engine: Engine = parts.engine
        self.grammars = GrammarCompiler(parts.tokenizer)
        self._requests: dict[int, Request] = {}  # by the id of each of their sequences
        self._lock = threading.RLock()  # of the engine and the requests

    # ---- whole replies ----------------------------------------------------------------------------------------

    @overload
    def generate(
        self, prompts: Prompt, params: Params = None, *, progress: bool = True, response_format: Any = None
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompts: list[str] | list[list[int]],
        params: Params = None,
        *,
        progress: bool = True,
        response_format: Any = None,
    ) -> list[Completion]: ...
    def generate(
        self, prompts: Any, params: Params = None, *, progress: bool = True, response_format: Any = None
    ) -> Completion | list[Completion]:
        """Continue a text (or its token ids), or several at once; a batch shows a progress bar on a terminal.

        With a `response_format` each completion is `parsed`: see `chat`.
        """
        several, single = prompts_of(prompts)
        form = response_format_of(response_format)
        done = self._complete([self._encode(prompt) for prompt in several], params, progress, form=form)
        return done[0] if single else done

    @overload
    def chat(
        self,
        messages: str | list[Message],
        params: Params = None,
        *,
        progress: bool = True,
        response_format: Any = None,
        **variables: Any,
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: list[str] | list[list[Message]],
        params: Params = None,
        *,
        progress: bool = True,
        response_format: Any = None,
        **variables: Any,
    ) -> list[Completion]: ...
    def chat(
        self,
        messages: Any,
        params: Params = None,
        *,
        progress: bool = True,
        response_format: Any = None,
        **variables: Any,
    ) -> Completion | list[Completion]:
        """Answer a conversation (a list of messages, or the text of one), or several at once.

        `response_format` is a pydantic model (or any class with `model_json_schema`), a dataclass, or a JSON schema:
        the reply follows it, and the completion holds the object as `parsed`. `variables` reach the chat template.
        """
        conversations, single = conversations_of(messages)
        prompts = [self.encode_chat(each, **variables) for each in conversations]
        form = response_format_of(response_format)
        done = self._complete(prompts, params, progress, reply=True, form=form)
        return done[0] if single else done

    # ---- streams ----------------------------------------------------------------------------------------------

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, response_format: Any = None
    ) -> Iterator[Chunk]:
        """Continue a prompt piece by piece; closing the iterator stops the request."""
        form = response_format_of(response_format)
        return self._stream(self.submit(self._encode(one_prompt(prompt)), form.over(params) if form else params), form)

    def stream_chat(
        self,
        messages: str | ListOf[Message],
        params: SamplingParams | None = None,
        *,
        response_format: Any = None,
        **variables: Any,
    ) -> Iterator[Chunk]:
        """Answer a conversation piece by piece; closing the iterator stops the request."""
        form = response_format_of(response_format)
        tokens = self.encode_chat(messages, **variables)
        return self._stream(self.submit(tokens, form.over(params) if form else params, reply=True), form)

    # ---- numbers ----------------------------------------------------------------------------------------------

    def embed(self, texts: Texts, pooling: Pooling | str = Pooling.LAST) -> Floats:
        """A text as a vector of length 1, or several (each a text or its tokens) as the rows of an array."""
        tokens = self.encode_texts(texts)
        with self._lock:
            job = EmbeddingJob(self.engine, tokens, pooling)
        try:
            while not job.finished:
                self.step()
            vectors = job.vectors()
        finally:
            with self._lock:
                job.abort()
        row: Floats = vectors[0] if isinstance(texts, str) else vectors
        return row

    def encode_texts(self, texts: Texts) -> list[list[int]]:
        """The tokens of one or several texts, some of which may be tokens already."""
        several = [texts] if isinstance(texts, str) else texts
        return [self.tokenizer.encode(text) if isinstance(text, str) else list(text) for text in several]

    @overload
    def score(self, prompt: str, continuations: str) -> Score: ...
    @overload
    def score(self, prompt: str, continuations: list[str]) -> list[Score]: ...
    def score(self, prompt: str, continuations: str | list[str]) -> Score | list[Score]:
        """How likely a continuation of the prompt is, or each of several; an empty prompt scores a text by itself."""
        texts = [continuations] if isinstance(continuations, str) else continuations
        prompts = [ScoringPrompt.join(self.tokenizer, prompt, text) for text in texts]
        done = self._complete([each.tokens for each in prompts], SCORING, progress=False)
        scores = [each.score(completion.prompt_logprobs) for each, completion in zip(prompts, done, strict=True)]
        return scores[0] if isinstance(continuations, str) else scores

    # ---- the ends ---------------------------------------------------------------------------------------------

    def render(self, messages: str | ListOf[Message], **variables: Any) -> str:
        """The prompt a conversation becomes."""
        return self._template.render(messages_of(messages), **variables)

    def encode_chat(self, messages: str | ListOf[Message], **variables: Any) -> list[int]:
        """The tokens of a rendered conversation; names of special tokens in messages are only text."""
        return encode_chat(self.tokenizer, self._template, messages_of(messages), **variables)

    def _encode(self, prompt: Prompt) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    @property
    def _template(self) -> ChatTemplate:
        if self.template is None:
            raise TemplateError(f"{self.name} has no chat template: use generate with a plain prompt (run --raw).")
        return self.template

    def stats(self) -> StatsSnapshot:
        """The engine's counters at this moment."""
        return self.engine.snapshot()

    def close(self) -> None:
        """Stop whatever still runs."""
        for request in list(self._requests.values()):
            self.remove(request)
        self.grammars.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("An LLM cannot be pickled: make one in each process, from the same name.")

    # ---- requests ---------------------------------------------------------------------------------------------

    def submit(
        self,
        tokens: list[int],
        params: SamplingParams | None = None,
        *,
        reply: bool = False,
        grammar: GrammarState | None = None,
    ) -> Request:
        """Queue a prompt; its choices grow with every `step`, until `remove`.

        A `reply` is a text of its own, anything else continues the prompt's. Compiling a `grammar` of the parameters
        takes a while; `grammar_state` can do that before.
        """
        asked = sampling_params(params)
        full = (complete if asked.grammar is None else precedence)(asked, self.sampling_defaults)
        state = grammar or self.grammar_state(asked)
        # The first space of a reply is dropped, unless a grammar speaks of it.
        continuing = (state is not None and state.active) or (not reply and has_text(self.tokenizer, tokens))
        with self._lock:
            first = self.engine.submit(tokens, full, lambda: TextWriter(self.tokenizer, full.stop, continuing), state)
            request = Request(first)
            self._requests.update(dict.fromkeys(request.choices, request))
        return request

    def grammar_state(self, params: SamplingParams) -> GrammarState | None:
        """The beginning of the grammar of a request, if it has one."""
        return self.grammars.state(params.grammar, params.grammar_after) if params.grammar else None

    def step(self) -> list[Request]:
        """Let every request advance; those that have something new."""
        with self._lock:
            return self.dispatch(self.engine.step())

    def dispatch(self, events: list[Event]) -> list[Request]:
        """Give the events of a step to their requests; those that have something new."""
        advanced: dict[int, Request] = {}
        for event in events:
            request = self._requests.get(event.sequence.id)
            if request:
                request.add(event)
                advanced[request.id] = request
        return list(advanced.values())

    def remove(self, request: Request, error: TahrError | None = None) -> None:
        """Stop a request if it still runs (with an error, it has failed), and free what it holds."""
        with self._lock:
            for seq in request.sequences:
                self.engine.abort(seq, error)
                self._requests.pop(seq.id, None)
            request.update_finished()

    def _complete(
        self,
        prompts: list[list[int]],
        params: Params,
        progress: bool,
        reply: bool = False,
        form: ResponseFormat | None = None,
    ) -> list[Completion]:
        each_params = one_each(params, len(prompts))
        if form:
            each_params = list(map(form.over, each_params))
        requests: list[Request] = []
        bar = Bar(len(prompts), progress)
        try:
            for tokens, each in zip(prompts, each_params, strict=True):
                requests.append(self.submit(tokens, each, reply=reply))
            while not all(request.finished for request in requests):
                self.step()
                bar.update(*self._progress(requests))
            done = [request.completion() for request in requests]
            return list(map(form.parsed, done)) if form else done
        finally:
            bar.close()
            for request in requests:
                self.remove(request)

    def _progress(self, requests: list[Request]) -> tuple[int, int]:
        n_tokens = sum(seq.n_generated for request in requests for seq in request.sequences)
        return sum(request.finished for request in requests), n_tokens

    def _stream(self, request: Request, form: ResponseFormat | None = None) -> Iterator[Chunk]:
        try:
            while True:
                with self._lock:
                    chunk = request.next_chunk()
                if chunk:
                    yield form.parsed_chunk(chunk) if form else chunk
                elif request.finished:
                    return
                else:
                    self.step()
        finally:
            self.remove(request)


@lru_cache(maxsize=256)
def complete(params: SamplingParams, defaults: SamplingParams) -> SamplingParams:
    """All settings filled in; most requests ask for the same."""
    return precedence(params, defaults)
