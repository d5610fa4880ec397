"""`SpeculativeEngine`: a model and a draft model for one text at a time, with snapshots that hold the text in both."""

from collections.abc import Callable
from dataclasses import replace
from os import fspath
from typing import NoReturn

from tahr.config import SamplingParams
from tahr.engine.engine import Event
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.speculator import SpeculationStats
from tahr.errors import ConfigError, ModelFingerprintMismatch, SnapshotIncompatible
from tahr.generation.driver import Driver
from tahr.generation.writers import TextWriter, has_text, line_limits
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.engine import check_max_tokens
from tahr.library.inference.loaded_model import local_files
from tahr.library.inference.session import Session
from tahr.library.inference.snapshot import put_back, take, unpack
from tahr.library.inputs.arguments import ModelName, short
from tahr.library.speculative.model_pair import keep, load_pair
from tahr.library.speculative.speculative_snapshot import SpeculativeText, join, split
from tahr.loading.fingerprint import fingerprint_of_files
from tahr.text.replies.deltas import text_of

OnText = Callable[[str], None]


class SpeculativeEngine:
    """Loads both models when it is made. Not for several threads at once.

    Replies are those of the target alone, token for token, at any temperature: `seed` takes the place of the
    sampler's own.
    """

    def __init__(
        self, target: InferenceConfig | ModelName, draft: ModelName, num_speculative: int = 4, seed: int | None = None
    ) -> None:
        self.config = target if isinstance(target, InferenceConfig) else InferenceConfig(model_path=fspath(target))
        self.draft_path = fspath(draft)
        self.num_speculative = num_speculative
        self.sampler = replace(self.config.sampler, seed=self.config.sampler.seed if seed is None else seed)
        check_sampler(self.sampler)
        self._pair = load_pair(self.config, self.draft_path, num_speculative)
        self._tokens: list[int] = []  # the text so far: a prompt and its reply
        self._n_prompt = 0
        self._mu: float | None = None  # mirostat's, where the reply stopped; None: it has not begun

    @property
    def tokens(self) -> list[int]:
        """The text in memory: the last prompt and its reply."""
        return list(self._tokens)

    @property
    def stats(self) -> SpeculationStats:
        """Counts of drafted and accepted tokens."""
        return self._pair.speculator.stats

    def generate(self, prompt: str, max_tokens: int, callback: OnText | None = None) -> str:
        """Continue a prompt; `callback` hears each piece of the text that is returned. No call influences another."""
        check_max_tokens(max_tokens)
        if not isinstance(prompt, str):
            raise ConfigError(f"The prompt is {short(prompt)}, but it must be a text.")
        self._tokens = self._pair.tokenizer.encode(prompt) if prompt else []
        self._n_prompt = len(self._tokens)
        self._mu = None
        return self.continue_text(max_tokens, callback)

    def continue_text(self, max_tokens: int, callback: OnText | None = None) -> str:
        """Go on with the text in memory, as if the reply had not stopped there."""
        check_max_tokens(max_tokens)
        if not self._tokens or not max_tokens:
            return ""
        # The least number of tokens counts from the prompt on, the most from here.
        seq = self._submit(replace(self.sampler, max_tokens=max(max_tokens, self.sampler.min_tokens)))
        seq.reply.max_length = min(seq.reply.max_length, len(self._tokens) + max_tokens)
        texts: list[str] = []

        def on_events(events: list[Event]) -> None:
            for _, deltas, _ in events:
                text = text_of(deltas)
                texts.append(text)
                if callback and text:
                    callback(text)

        try:
            Driver(self._pair.engine).run(lambda: seq.done, on_events)
        finally:
            self._pair.engine.abort(seq)  # the next text must not be mixed with this one if the callback raised
        if seq.result.error:
            raise seq.result.error
        assert seq.reply.request
        self._tokens = seq.tokens
        self._mu = float(seq.reply.request.sampling.mu)
        return "".join(texts)

    def _submit(self, params: SamplingParams) -> Sequence:
        tokenizer = self._pair.tokenizer
        continuing = has_text(tokenizer, self._tokens)

        def new_writer() -> TextWriter:
            return TextWriter(tokenizer, params.stop, continuing, line_limits(params))

        seq = self._pair.engine.submit(ResolvedRequest(self._tokens, params, new_writer))
        assert seq.reply.request
        # Random numbers, penalties and mirostat go on where the reply stopped.
        seq.reply.request.n_prompt = self._n_prompt
        seq.reply.request.sampling.mu = seq.reply.request.sampling.mu if self._mu is None else self._mu
        return seq

    # ---- snapshots --------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The text in memory with the keys and values of both models; it is computed once more for that."""
        pair = self._pair
        session = Session(pair.engine, pair)
        if self._tokens:
            session.feed(self._tokens)
            pair.proposer.follow(session.sequence)
        prints = [fingerprint_of_files(local_files(path).weights) for path in (self.config.model_path, self.draft_path)]
        inner = take(session, replace(self.config, sampler=self.sampler), pair.config.family, prints[0])
        session.truncate(0)
        text = SpeculativeText(self.num_speculative, self._n_prompt, self.draft_path, prints[1], self._mu)
        return join(text, inner)

    @classmethod
    def resume(cls, data: bytes, target_path: str | None = None, draft_path: str | None = None) -> "SpeculativeEngine":
        """An engine that goes on where the snapshot was taken; files may have moved, but not changed."""
        text, inner = split(data)
        info, rows = unpack(inner)
        if text.n_prompt > len(info.tokens):
            raise SnapshotIncompatible("The snapshot's prompt is longer than the text: make the snapshot anew.")
        paths = (target_path or info.config.model_path, draft_path or text.draft_path)
        for path, expected in zip(paths, (info.fingerprint, text.draft_fingerprint), strict=True):
            if fingerprint_of_files(local_files(path).weights) != expected:
                raise ModelFingerprintMismatch(
                    f"The snapshot was made with other weights than those in {path}: give the right file."
                )
        config = replace(info.config, model_path=paths[0], context_size=info.context_size, kv_dtype=info.kv_dtype)
        engine = cls(config, paths[1], text.n_tokens)
        session = Session(engine._pair.engine, engine._pair)
        put_back(session, info, rows)
        if info.tokens:
            keep(engine._pair, session.sequence)
        session.truncate(0)
        engine._tokens = list(info.tokens)
        engine._n_prompt = text.n_prompt
        engine._mu = text.mu
        return engine

    def __reduce__(self) -> NoReturn:
        raise TypeError("A SpeculativeEngine cannot be pickled: use snapshot() and SpeculativeEngine.resume().")


def check_sampler(params: SamplingParams) -> None:
    """Refuse what one text without a grammar cannot follow."""
    for name, requested in (("n > 1", params.n > 1), ("grammar", params.grammar is not None)):
        if requested:
            raise ConfigError(f"A SpeculativeEngine writes one text and takes no {name}: use LLM with spec_draft.")
