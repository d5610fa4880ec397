"""`LLM`: a model from a name to text, for scripts and the command line."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as ListOf
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, overload

from tahr.backends.api import Floats
from tahr.collector import rare_collections
from tahr.config import EngineConfig, LoraChoice, SamplingParams, precedence
from tahr.engine.engine import Engine
from tahr.engine.sequences.adapter_stack import NO_STACK, LoadedAdapter
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.stats import StatsSnapshot
from tahr.errors import ConfigError, TahrError, TemplateError
from tahr.generation.driver import Driver
from tahr.generation.options import split_options
from tahr.generation.outputs import Chunk, Completion, Request
from tahr.generation.request import ChatPrompt, GenerationRequest
from tahr.generation.resolve import RequestFacts, encoded_chat, rendered, resolve
from tahr.grammar.compiler import GrammarCompiler
from tahr.grammar.state import GrammarState
from tahr.library.embeddings import EmbeddingJob, EmbeddingOptions, Item, Pooling
from tahr.library.inputs.arguments import (
    Message,
    ModelName,
    Params,
    Prompt,
    conversations_of,
    engine_config,
    messages_of,
    model_name,
    one_each,
    one_prompt,
    prompts_of,
    sampling_params,
    texts_of,
)
from tahr.library.inputs.image_inputs import Images, several_images
from tahr.library.inputs.rerank import RankedDocument, plan_pairs, ranked
from tahr.library.inputs.text_inputs import TextInputs
from tahr.library.progress_bar import Bar
from tahr.library.score import SCORING, Score, ScoringPrompt
from tahr.library.speaking.speech import Speech, planned
from tahr.library.speaking.speech import voice_of as voice_vector
from tahr.library.structured.response_format import ResponseFormat, response_format_of
from tahr.library.transcribing.recordings import Sound, blocks_of
from tahr.library.transcribing.transcription import Transcription
from tahr.loading.budgets import held_weight_bytes
from tahr.loading.builder import Assembled, assemble
from tahr.speech.decoding.options import TranscribeOptions
from tahr.speech.speaking.options import SpeakOptions

__all__ = ["LLM", "Chunk", "Completion", "Message", "Params"]

Texts = str | ListOf[str | list[int]]


class LLM:
    """A loaded model. Replies to prompts and conversations, one by one, in batches, or as streams.

    Threads may share it: whichever of them steps advances the requests of all. A forked process may not.
    """

    def __init__(
        self,
        model: ModelName | None = None,
        *,
        config: EngineConfig | None = None,
        quantization: str | None = None,
        progress: Any = None,
        **settings: Any,  # the fields of EngineConfig, where there is no config
    ):
        config = engine_config(config, settings)
        parts: Assembled = assemble(model_name(model), config, quantization, progress)
        self.name = parts.name
        self.tokenizer = parts.tokenizer
        self.template = parts.template
        self.model_config = parts.model_config
        self.context_size = parts.engine.context_size
        self.sampling_defaults = precedence(parts.sampling)
        self.load_log = parts.log
        self.backend_summary = parts.backend_summary
        kv_bytes = parts.engine.executor.facts.memory.n_bytes
        self.n_weight_bytes = held_weight_bytes(config, parts.n_weight_bytes, kv_bytes)
        self.n_bytes = self.n_weight_bytes + kv_bytes  # limit on memory
        self.engine: Engine = parts.engine
        self.n_host_weight_bytes = parts.n_host_weight_bytes  # beside a device
        has_own_memory = self.engine.executor.facts.has_own_memory
        self.n_device_bytes = self.n_bytes - self.n_host_weight_bytes if has_own_memory else 0  # the part on a device
        self.encoding = self.engine.facts.encoding  # None: it generates
        self.inputs = TextInputs.of(
            parts.tokenizer, parts.model_config, parts.engine.facts, self.context_size, parts.images, parts.padding
        )
        self.speech = parts.speech  # None: it writes down no recordings
        self.speaking = parts.speaking  # None: it does not speak
        self.grammars = GrammarCompiler(parts.tokenizer)
        self.driver = Driver(self.engine)
        self.lock = self.driver.lock  # guards the engine and the requests

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
        each_params = each_over(form, params, len(several))
        texts = [self.resolve(text_request(one, own)) for one, own in zip(several, each_params, strict=True)]
        done = self._complete(texts, progress, form)
        return done[0] if single else done

    @overload
    def chat(
        self,
        messages: str | list[Message],
        params: Params = None,
        *,
        progress: bool = True,
        response_format: Any = None,
        **options: Any,
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: list[str] | list[list[Message]],
        params: Params = None,
        *,
        progress: bool = True,
        response_format: Any = None,
        **options: Any,
    ) -> list[Completion]: ...
    def chat(
        self,
        messages: Any,
        params: Params = None,
        *,
        progress: bool = True,
        response_format: Any = None,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Answer a conversation (a list of messages, or the text of one), or several at once.

        `response_format` is a pydantic model (or any class with `model_json_schema`), a dataclass, or a JSON schema:
        the reply follows it, and the completion holds the object as `parsed`. Options: `tools`, `tool_choice`,
        `parallel_tool_calls`, `thinking`, `reasoning_effort`; others are variables of the chat template. Calls are in
        the completion's `tool_calls`, thinking is in its `reasoning`.
        """
        conversations, single = conversations_of(messages)
        form = response_format_of(response_format)
        each_params = each_over(form, params, len(conversations))
        chats = [self.prepare_chat(each, own, **options) for each, own in zip(conversations, each_params, strict=True)]
        done = self._complete(chats, progress, form)
        return done[0] if single else done

    # ---- streams ----------------------------------------------------------------------------------------------

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, response_format: Any = None
    ) -> Iterator[Chunk]:
        """Continue a prompt piece by piece; closing the iterator stops the request."""
        form = response_format_of(response_format)
        return self._stream(self.submit(prompt, form.over(params) if form else params), form)

    def stream_chat(
        self,
        messages: str | ListOf[Message],
        params: SamplingParams | None = None,
        *,
        response_format: Any = None,
        **options: Any,
    ) -> Iterator[Chunk]:
        """Answer a conversation piece by piece, with the options of `chat`; closing the iterator stops the request."""
        form = response_format_of(response_format)
        prepared = self.prepare_chat(messages, form.over(params) if form else params, **options)
        return self._stream(self.submit_resolved(prepared), form)

    # ---- recordings -------------------------------------------------------------------------------------------

    def transcribe(self, sound: Sound, options: TranscribeOptions | None = None, **settings: Any) -> Transcription:
        """Write down what is said in a recording: an iterator of segments, which are found as they are wanted.

        `sound` is a path, the bytes of a file, or samples at 16 kHz. Settings are the fields of `TranscribeOptions`.
        """
        return Transcription(self, blocks_of(sound), options or TranscribeOptions(**settings))

    def speak(
        self, text: str, options: SpeakOptions | None = None, *, voice_of: Sound | None = None, **settings: Any
    ) -> Speech:
        """Speak a text: an iterator of pieces of sound, which are made as they are wanted; `samples()` is all of it.

        Settings are the fields of `SpeakOptions`. `voice_of` is a recording whose voice is copied, of a Base model: a
        path, the bytes of a file, or samples at 24 kHz.
        """
        chosen = options or SpeakOptions(**settings)
        vector = None if voice_of is None else voice_vector(self, voice_of)
        return Speech(self, planned(self, text, chosen, vector), chosen)

    # ---- adapters ---------------------------------------------------------------------------------------------

    def add_lora(self, name: str, path: str | Path, scale: float = 1.0) -> LoadedAdapter:
        """Load an adapter, a folder of PEFT's or a GGUF file; `SamplingParams(lora=name)` uses it from then on."""
        prepared = self.engine.adapters.prepare(path)
        with self.lock:
            return self.engine.adapters.add(name, prepared, scale)

    def remove_lora(self, name: str) -> None:
        """No new request may use the adapter; its memory is free when those that use it have finished."""
        with self.lock:
            self.engine.adapters.remove(name)

    def loras(self) -> list[LoadedAdapter]:
        """The adapters that requests may use."""
        return self.engine.adapters.loaded()

    def apply_lora(self, lora: str | ListOf[LoraChoice] = ()) -> None:
        """Let requests that name no adapter use these; without any, the model as it is."""
        adapters = self.engine.adapters
        with self.lock:
            adapters.apply(adapters.stack(lora) if lora else NO_STACK)

    # ---- numbers ----------------------------------------------------------------------------------------------

    def embed(
        self,
        texts: Texts | None = None,
        pooling: Pooling | str | None = None,
        *,
        images: Images = None,
        normalize: bool = True,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: int | None = None,
        lora: str | ListOf[LoraChoice] = (),
    ) -> Floats:
        """A text as a vector of length 1, or several (each a text or its tokens) as the rows of an array.

        Without `pooling` the model's own is taken; of a model that generates, the last token's state. `dimensions`
        keeps the first numbers of each vector. `prompt_name` is one of the model's prompts, which is put before the
        texts. A text that is too long is an error, unless `truncate` says how many of its tokens to keep (-1: as many
        as the model takes).

        `images` (of a model that embeds both) are paths, bytes of files, images of Pillow's or arrays of bytes in RGB,
        [height, width, 3]; their vectors follow those of the texts.
        """
        items, single = self.embedding_items(texts, images, prompt_name, truncate)
        vectors = self._vectors(items, EmbeddingOptions(pooling, normalize, dimensions), lora)
        row: Floats = vectors[0] if single else vectors
        return row

    def embedding_items(
        self, texts: Texts | None, images: Images, prompt_name: str | None = None, truncate: int | None = None
    ) -> tuple[list[Item], bool]:
        """Texts and images as the model reads them, and whether it is one alone, which has no list around it."""
        several, single = several_images(images)
        if texts is None and images is None:
            raise ConfigError("There is nothing to embed: give texts, images, or both.")
        items: list[Item] = [] if texts is None else list(self.encode_texts(texts, prompt_name, truncate))
        items += self.inputs.read_images(several) if images is not None else []
        return items, len(items) == 1 and (single or isinstance(texts, str))

    def rerank(
        self, query: str, documents: ListOf[str], *, top_n: int | None = None, truncate: int | None = None
    ) -> list[RankedDocument]:
        """The documents by how well they answer the query, the best first.

        A cross-encoder reads each with the query; of an embedding model, the cosine counts. `truncate` is as for
        `embed`; of a pair, the document is cut.
        """
        return ranked(self.score_pairs(query, documents, truncate=truncate), top_n)

    def score_pairs(
        self, first: str | ListOf[str], second: str | ListOf[str], *, truncate: int | None = None
    ) -> list[float]:
        """How well texts go together: one with each of several, or each with the one at its place."""
        plan = plan_pairs(self.inputs, first, second, truncate)
        return plan.scores(self._vectors(plan.texts, EmbeddingOptions(), ()))

    def _vectors(self, items: ListOf[Item], options: EmbeddingOptions, lora: str | ListOf[LoraChoice]) -> Floats:
        with self.lock:
            job = EmbeddingJob(self.engine, items, options, lora)
        try:
            self._run(lambda: job.finished)
            with self.lock:
                return job.vectors()
        finally:
            with self.lock:
                job.abort()

    def encode_texts(
        self, texts: Texts, prompt_name: str | None = None, truncate: int | None = None
    ) -> list[list[int]]:
        """The tokens of one or several texts, some of which may be tokens already."""
        several = texts_of(texts)
        prompt = self.inputs.prompt(prompt_name)
        return [self.inputs.encode(text, prompt, truncate) for text in several]

    @overload
    def score(self, prompt: str, continuations: str) -> Score: ...
    @overload
    def score(self, prompt: str, continuations: list[str]) -> list[Score]: ...
    def score(self, prompt: str, continuations: str | list[str]) -> Score | list[Score]:
        """How likely a continuation of the prompt is, or each of several; an empty prompt scores a text by itself."""
        prompts = [ScoringPrompt.join(self.tokenizer, prompt, text) for text in texts_of(continuations)]
        done = self._complete([self.resolve(text_request(each.tokens, SCORING)) for each in prompts], progress=False)
        scores = [each.score(completion.prompt_logprobs) for each, completion in zip(prompts, done, strict=True)]
        return scores[0] if isinstance(continuations, str) else scores

    # ---- the ends ---------------------------------------------------------------------------------------------

    def render(self, messages: str | ListOf[Message], **options: Any) -> str:
        """The prompt a conversation becomes."""
        self._check_chats()
        return rendered(chat_request(messages_of(messages), None, options), self.facts)

    def encode_chat(self, messages: str | ListOf[Message], **options: Any) -> list[int]:
        """The tokens of a rendered conversation; names of special tokens in messages are only text."""
        self._check_chats()
        return encoded_chat(chat_request(messages_of(messages), None, options), self.facts)

    def prepare_chat(
        self, messages: str | ListOf[Message], params: SamplingParams | None = None, **options: Any
    ) -> ResolvedRequest:
        """A conversation as `submit_resolved` takes it, with the options of `chat`."""
        return self.resolve(chat_request(messages_of(messages), params, options))

    def resolve(self, request: GenerationRequest, facts: RequestFacts | None = None) -> ResolvedRequest:
        """A request with everything filled in, fitted and checked, maybe with other defaults than the model's."""
        if not request.raw:
            self._check_chats()
        return resolve(request, facts or self.facts)

    def _check_chats(self) -> None:
        self.engine.check_generates()
        if self.template is None:
            raise TemplateError(f"{self.name} has no chat template: use generate with a plain prompt (run --raw).")

    @property
    def facts(self) -> RequestFacts:
        """The facts about this model that its requests depend on."""
        return RequestFacts.of(self)

    def stats(self) -> StatsSnapshot:
        """The engine's counters at this moment."""
        return self.engine.snapshot()

    def close(self) -> None:
        """Stop whatever still runs."""
        self.driver.close()
        self.grammars.close()
        self.engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("An LLM cannot be pickled: make one in each process, from the same name.")

    # ---- requests ---------------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        """Queue a prompt; its choices grow with every `step`, until `remove`."""
        return self.submit_resolved(self.resolve(text_request(one_prompt(prompt), params)))

    def submit_resolved(self, resolved: ResolvedRequest, grammar: GrammarState | None = None) -> Request:
        """Queue what `resolve` made. Compiling its grammar takes a while; `grammar_state` can do that before."""
        return self.driver.submit(resolved, grammar or self.grammar_state(resolved.params))

    def grammar_state(self, params: SamplingParams) -> GrammarState | None:
        """The beginning of the grammar of a request, if it has one."""
        return self.grammars.state(params.grammar, params.grammar_after) if params.grammar else None

    def step(self) -> list[Request]:
        """Let every request advance; those whose readers must be woken."""
        return self.driver.advance()

    def _run(self, until: Callable[[], bool], after_step: Callable[[], None] = lambda: None) -> None:
        """Advance until a condition holds: other threads may meanwhile do so, too."""
        while not until():
            self.step()
            after_step()

    def remove(self, request: Request, error: TahrError | None = None) -> None:
        """Stop a request if it still runs (with an error, it has failed), and free what it holds."""
        self.driver.abort(request, error)

    def _complete(
        self, prompts: ListOf[ResolvedRequest], progress: bool, form: ResponseFormat | None = None
    ) -> list[Completion]:
        requests: list[Request] = []
        bar = Bar(len(prompts), progress)
        try:
            with rare_collections():
                for each in prompts:
                    requests.append(self.submit_resolved(each))
                is_finished = attrgetter("finished")
                self._run(lambda: all(map(is_finished, requests)), lambda: bar.update(lambda: self._progress(requests)))
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
        """Its chunks. The generator has begun: one that has not would leave the request running when it is closed."""
        made = self._chunks(request, form)
        next(made)
        return made

    def _chunks(self, request: Request, form: ResponseFormat | None) -> Iterator[Any]:
        try:
            yield None
            while True:
                with self.lock:
                    chunk = request.next_chunk()
                if chunk:
                    yield form.parsed_chunk(chunk) if form else chunk
                elif request.finished:
                    return
                else:
                    self.step()
        finally:
            self.remove(request)


def text_request(prompt: Prompt, params: SamplingParams | None) -> GenerationRequest:
    """A text, or its tokens, to continue."""
    return GenerationRequest(prompt, sampling_params(params), cuts_length=True)


def chat_request(
    messages: ListOf[Message], params: SamplingParams | None, options: Mapping[str, Any]
) -> GenerationRequest:
    """A conversation to reply to, with the options of `LLM.chat`."""
    tools, thinking, variables = split_options(options)
    prompt = ChatPrompt(messages, variables)
    return GenerationRequest(prompt, sampling_params(params), tools, thinking, cuts_length=True)


def each_over(form: ResponseFormat | None, params: Params, n: int) -> list[SamplingParams]:
    """The settings of each of n requests, all with the grammar of a response format, if there is one."""
    each = one_each(params, n)
    return list(map(form.over, each)) if form else each
