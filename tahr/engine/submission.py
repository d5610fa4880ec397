"""How requests and other work come in: checked, made into sequences, queued."""

import os
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import replace

from tahr.backends.api import Floats
from tahr.config import GREEDY, LoraChoice
from tahr.engine.adapters.registry import Adapters
from tahr.engine.row_checks import check_prompt_rows, check_source, check_whole
from tahr.engine.sampling.dry import Resolve
from tahr.engine.sampling.sampling_state import SampleRequest, SamplingState
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.sequences.adapter_stack import AdapterStack
from tahr.engine.sequences.frames import Frames
from tahr.engine.sequences.parts import NO_ROW, Queueing, ReplyState, WantedOutput
from tahr.engine.sequences.prompt_rows import NO_ROWS, PromptRows, RowSource
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.sequences.stats import EngineStats
from tahr.engine.sequences.writer import Writer
from tahr.engine.speculation.speculator import Speculator, may_speculate
from tahr.errors import ConfigError, ContextExceeded, GenerateError, KvCacheFull
from tahr.executor.output import Output
from tahr.executor.protocol import Executor
from tahr.grammar.state import GrammarState

PLACEHOLDER = 0  # token in whose place a row stands
ROWS_ONLY = replace(GREEDY, cache_prompt=False)  # parameters of sequences from which nothing is sampled


class Submission:
    """Refuses what could never run, and queues the rest."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        context_size: int,
        eos_ids: frozenset[int],
        resolve: Resolve | None,
        speculator: Speculator | None,
    ):
        self.scheduler = scheduler
        self.facts = executor.models[0]  # facts of the model
        self.tower_facts = executor.tower
        self.context_size = context_size
        self.eos_ids = eos_ids
        self.stats = EngineStats()
        self.speculator = speculator  # None: nothing is guessed
        self.adapters = Adapters(executor.adapters)
        self._resolve = resolve
        self._pid = os.getpid()

    def submit(self, request: ResolvedRequest, grammar: GrammarState | None = None) -> Sequence:
        """Queue a request; refused at once if it could never run. With n > 1 its `forks` are the other choices.

        `grammar` is what the grammar of the parameters was compiled to. The sequences of a client's request let those
        of others go between them.
        """
        tokens = request.tokens
        params = request.params
        self._check_process()
        self.check_generates()
        self._check(tokens)
        max_length = min(len(tokens) + (params.max_tokens or self.context_size), self.context_size)
        self._check_length(max_length)
        self._check_rows(request.rows, len(tokens), params.prompt_logprobs is not None)
        rows = request.rows.salted(params.cache_salt) if request.rows else NO_ROWS
        stack = self.adapters.stack(params.lora)
        sampling = SamplingState(params, self.eos_ids, self._resolve)
        sampling.check(self.facts.n_vocab)
        states = [sampling, *(sampling.fork(index) for index in range(1, params.n))]
        assert (params.grammar is None) == (grammar is None), "a grammar is compiled before its request is submitted"
        grammars = [grammar, *(grammar and grammar.fork() for _ in states[1:])]
        choices = [
            self._choice(list(tokens), max_length, state, request.new_writer(), each)
            for state, each in zip(states, grammars, strict=True)
        ]
        for index, choice in enumerate(choices):
            self.adapters.attach(choice, stack)
            choice.queueing.owner = request.owner
            choice.queueing.n_before = request.n_before + index
            choice.queueing.is_background = request.background
            choice.rows = rows
        first, *first.queueing.forks = choices
        first.ahead.host_bound |= bool(first.queueing.forks)  # the sequence is forked when its first token is known
        self.stats.requests_started += len(choices)
        self.scheduler.add(first)
        return first

    def submit_rows(
        self,
        tokens: ListOf[int],
        sink: Callable[[Floats], None],
        output: Output = Output.LOGITS,
        first_row: int = NO_ROW,
        stays: bool = False,
        lora: str | ListOf[LoraChoice] | AdapterStack = (),
        rows: PromptRows = NO_ROWS,
        background: bool = False,
    ) -> Sequence:
        """Queue a text whose rows are wanted, not a reply: those from `first_row` on and the last go to `sink`.

        It ends when all are computed, unless it `stays`: then its owner adds tokens and closes it.
        """
        self._check_process()
        self._check_writes()
        if output is Output.LOGITS:
            self.check_generates()
        if len(tokens) > self.context_size:
            raise ConfigError(f"The text has {len(tokens)} tokens, but the context holds {self.context_size}: cut it.")
        self._check_tokens(tokens, self.facts.n_logits)
        self._check_length(len(tokens))
        self._check_rows(rows, len(tokens), first_row < len(tokens))
        if rows and stays and not rows.seen_by_all:
            raise ConfigError("A session's text reads no rows of images or speech: submit them with a request.")
        stack = lora if isinstance(lora, AdapterStack) else self.adapters.stack(lora)
        seq = self.row_sequence(list(tokens), sink, output, first_row, stays, stack)
        seq.rows = rows or NO_ROWS
        seq.queueing.is_background = background
        self.scheduler.add(seq)
        return seq

    def submit_frames(
        self,
        tokens: ListOf[int],
        frames: Frames,
        sink: Callable[[Floats], None],
        rows: PromptRows = NO_ROWS,
        salt: str = "",
        background: bool = False,
    ) -> Sequence:
        """Queue a text to be spoken. The codes of the frame behind its last token go to `sink`, [1, n_codes]; its owner
        adds a token for each frame and closes it."""
        self._check_process()
        if not self.facts.frames.n_codes:
            raise ConfigError("This model does not speak: load one that does, such as qwen3-tts.")
        self._check(tokens)
        self._check_length(len(tokens) + 1)
        self._check_rows(rows, len(tokens))
        seq = self.row_sequence(list(tokens), sink, Output.FRAME, stays=True)
        seq.wanted.frames = frames
        seq.rows = rows.salted(salt) if rows else NO_ROWS
        seq.queueing.is_background = background
        self.scheduler.add(seq)
        return seq

    def submit_image(self, source: RowSource, sink: Callable[[Floats], None], background: bool = False) -> Sequence:
        """Queue an image, given as the rows that the model's tower reads; its vector goes to `sink`."""
        self._check_process()
        if not self.tower_facts or not self.facts.encoding:
            raise ConfigError("This model embeds no images: leave them out, or choose one that embeds both.")
        check_source(source, 1, self.facts.rows.width, self.tower_facts)
        seq = self.row_sequence([PLACEHOLDER], sink, Output.HIDDEN)
        seq.wanted.source = source
        seq.queueing.is_background = background
        self.scheduler.add(seq)
        return seq

    def row_sequence(
        self,
        tokens: list[int],
        sink: Callable[[Floats], None],
        output: Output = Output.LOGITS,
        first_row: int = NO_ROW,
        stays: bool = False,
        stack: AdapterStack | None = None,  # None: the engine's own
    ) -> Sequence:
        """A sequence as `submit_rows` queues it."""
        wanted = WantedOutput(output, first_row, sink)
        seq = Sequence(tokens, ROWS_ONLY, ReplyState(self.context_size), wanted=wanted, queueing=Queueing(stays))
        self.adapters.attach(seq, self.adapters.default if stack is None else stack)
        return seq

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise GenerateError(
                "The model was loaded by the process this one was forked from, and its worker threads are not here: "
                "load it again in this process, or start processes by spawning."
            )

    def check_generates(self) -> None:
        """Refuse to generate with a model that embeds or scores texts."""
        self._check_writes()
        encoding = self.facts.encoding
        if encoding:
            does = "scores pairs of texts: use rerank" if encoding.scores_pairs else "embeds texts: use embed"
            raise ConfigError(f"This model generates no text, it {does}, or choose a model that generates.")

    def _check_writes(self) -> None:
        """Refuse texts and states of a model whose steps draw frames."""
        if self.facts.frames.n_codes:
            raise ConfigError("This model speaks and writes no text: use speak (tahr tts), or load one that chats.")

    def _check(self, tokens: ListOf[int]) -> None:
        if len(tokens) >= self.context_size:
            raise ContextExceeded(len(tokens), self.context_size)
        self._check_tokens(tokens, self.facts.n_vocab)

    def _check_tokens(self, tokens: ListOf[int], n_vocab: int) -> None:
        if not tokens:
            raise ConfigError("The prompt is empty: give at least one token of text.")
        if min(tokens) < 0 or max(tokens) >= n_vocab:
            raise ConfigError(f"Token ids must lie between 0 and {n_vocab - 1}.")

    def _check_length(self, max_length: int) -> None:
        if not self.scheduler.holds(max_length):
            n_held = self.scheduler.pools[0].n_pages * self.scheduler.page_size
            raise KvCacheFull(
                f"The request may need {max_length} tokens, but the whole KV pool holds {n_held}: "
                "lower max_tokens, shorten the prompt, or give the engine more KV memory."
            )

    def _check_rows(self, rows: PromptRows, n_prompt: int, wants_rows: bool = False) -> None:
        if self.facts.rows.n_each and not rows.seen_by_all:
            raise ConfigError("This model writes down recordings: use transcribe, or choose a model that chats.")
        if rows:
            slots = self.scheduler.rows and self.scheduler.rows.slots
            check_prompt_rows(rows, n_prompt, self.facts, self.tower_facts, slots.n_slots if slots else 0)
            check_whole(rows, wants_rows, self.scheduler.limits)

    def _choice(
        self,
        tokens: list[int],
        max_length: int,
        sampling: SamplingState,
        writer: Writer,
        grammar: GrammarState | None,
    ) -> Sequence:
        request = SampleRequest(sampling, tokens, len(tokens), grammar)
        params = sampling.params
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_ids)
        seq = Sequence(tokens, params, ReplyState(max_length, writer, request, ends))
        seq.ahead.host_bound = sampling.follows_text or params.thinking_budget is not None
        # provisional: the speculator may say otherwise
        seq.ahead.speculates = self.speculator is not None and may_speculate(seq)
        return seq
