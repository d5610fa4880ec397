"""`InferenceEngine`: one model, one text at a time, every step in the caller's hands."""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tahr import hub
from tahr.backends.api import Floats
from tahr.config import SamplingParams, whole
from tahr.engine.adapters.applied import Lora, LoraPath, LoraStack, ReadLora
from tahr.errors import ConfigError, ModelFingerprintMismatch, ModelNotFound, ModelNotLoaded
from tahr.grammar import Grammar
from tahr.library.beam import BeamSearchConfig, EngineBeams, Hypothesis, beam_search
from tahr.library.embeddings import EmbeddingOptions, Pooling, embed
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.generate import decode, open_reply
from tahr.library.inference.loaded_model import LoadedModel, load_bytes, load_path, local_files
from tahr.library.inference.metrics import Metrics, MetricsSnapshot
from tahr.library.inference.prefix_store import PrefixStore
from tahr.library.inference.session import KvCopy
from tahr.library.inference.session_progress import CancellationToken, GenerationProgress, ProgressReporter
from tahr.library.inference.snapshot import SnapshotInfo, put_back, read_info, take, unpack
from tahr.library.inputs.arguments import sampling_params, short, texts_of, token_ids
from tahr.loading.fingerprint import fingerprint_of_files
from tahr.loading.unfit import unfit_for
from tahr.models.config.record import ModelConfig

OnText = Callable[[str], None]
OnProgress = Callable[[GenerationProgress], None]
N_NEW = whole(0)


class InferenceEngine:
    """Made without touching a file; `load_model` does the work. Not for several threads at once.

    Logits and embeddings are NumPy arrays, which other libraries take without a copy (`torch.from_dlpack(logits)`).
    """

    def __init__(self, config: InferenceConfig):
        if not isinstance(config, InferenceConfig):
            raise ConfigError(f"InferenceEngine needs an InferenceConfig(model_path=...), not {short(config)}.")
        self.config = config
        self._loaded: LoadedModel | None = None
        self._metrics = Metrics()
        self._loras = LoraStack()

    @classmethod
    def from_hub(cls, reference: str, *, quant: str | None = None, **settings: Any) -> "InferenceEngine":
        """An engine for a model by its name, fetching its files if they are not here; still to be loaded."""
        files = hub.resolve(reference, quant=quant, unfit=unfit_for())
        return cls(InferenceConfig(model_path=str(files.path), origin=reference, **settings))

    # ---- loading ----------------------------------------------------------------------------------------------

    def load_model(self) -> None:
        """Open the files, build the model, its memory and its tokenizer."""
        self._take(load_path(self.config))

    def load_model_from_bytes(
        self, gguf_bytes: bytes | bytearray | memoryview, tokenizer_json: bytes | str | None = None
    ) -> None:
        """Load a model from the bytes of a GGUF file, without a file system."""
        self._take(load_bytes(self.config, gguf_bytes, tokenizer_json))

    def _take(self, model: LoadedModel) -> None:
        self._loaded = model

    @property
    def _model(self) -> LoadedModel:
        if self._loaded is None:
            raise ModelNotLoaded("No model is loaded: call load_model() first.")
        return self._loaded

    # ---- what is loaded ---------------------------------------------------------------------------------------

    @property
    def model_config(self) -> ModelConfig | None:
        """The model in numbers; None before loading."""
        return self._loaded.config if self._loaded else None

    @property
    def hidden_size(self) -> int | None:
        """The length of an embedding; None before loading."""
        return self._loaded.config.width if self._loaded else None

    @property
    def context_size(self) -> int | None:
        """How many tokens a text can have; None before loading."""
        return self._loaded.session.context_size if self._loaded else None

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text, opened as the model was trained to see it."""
        if not isinstance(text, str):
            raise ConfigError(f"The text is {short(text)}, but it must be a text.")
        return self._model.tokenizer.encode(text)

    def decode_token(self, token: int) -> str:
        """The text of one token; bytes that are no whole character read as U+FFFD."""
        return self._model.tokenizer.token_bytes(token).decode("utf-8", "replace")

    def is_eos(self, token: int) -> bool:
        """Whether the token ends a reply."""
        return self._model.tokenizer.is_eos(token)

    def vocab_bytes(self) -> list[tuple[int, bytes]] | None:
        """Every token that stands for text, with its bytes; None before loading."""
        return self._loaded.tokenizer.vocab_bytes() if self._loaded else None

    # ---- whole replies ----------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str,
        max_tokens: int,
        callback: OnText | None = None,
        *,
        cancel: CancellationToken | None = None,
        progress: OnProgress | None = None,
    ) -> str:
        """Continue a prompt; `callback` hears each piece of the text that is returned.

        The memory is emptied first: no call influences another. `cancel` stops before the next token.
        """
        return self.generate_with_config(prompt, max_tokens, self.config.sampler, callback, cancel, progress)

    def generate_with_config(
        self,
        prompt: str,
        max_tokens: int,
        sampler_config: SamplingParams,
        callback: OnText | None = None,
        cancel: CancellationToken | None = None,
        progress: OnProgress | None = None,
    ) -> str:
        """Generate with other sampling parameters for this call alone."""
        model = self._model
        tokens = self.tokenize(prompt) if prompt != "" else []
        check_max_tokens(max_tokens)
        model.session.truncate(0)
        if not tokens or not max_tokens:
            return ""
        self._metrics.kv_misses += 1
        logits = self._feed(tokens)
        return self.generate_with_logits(tokens, logits, max_tokens, sampler_config, callback, cancel, progress)

    def generate_with_logits(
        self,
        prompt_tokens: ListOf[int],
        initial_logits: Floats,
        max_tokens: int,
        sampler_config: SamplingParams | None = None,
        callback: OnText | None = None,
        cancel: CancellationToken | None = None,
        progress: OnProgress | None = None,
    ) -> str:
        """Continue the text that is in memory, whose last logits are given: nothing is prefilled."""
        model = self._model
        check_max_tokens(max_tokens)
        if list(prompt_tokens) != model.session.tokens:
            raise ConfigError("prompt_tokens are not the tokens in memory: prefill those, or prime with a prefix.")
        if np.shape(initial_logits) != (model.config.n_vocab,) or not isinstance(initial_logits, np.ndarray):
            shape = f"{np.shape(initial_logits)}, but it must be an array of ({model.config.n_vocab},)"
            raise ConfigError(f"The logits have the shape {shape}: give what forward_prefill returned.")
        total = min(max_tokens, model.session.n_remaining + 1)
        requested = self.config.sampler if sampler_config is None else sampling_params(sampler_config)
        grammar = model.grammars.state(requested.grammar, requested.grammar_after) if requested.grammar else None
        reply = open_reply(requested, model.tokenizer, prompt_tokens, total, grammar)
        reporter = ProgressReporter(progress, total) if progress else None
        self._metrics.requests_started += 1
        text = self._listen(decode(model.session, initial_logits, reply), callback, cancel, reporter)
        self._metrics.requests_completed += 1
        return text

    def _listen(
        self,
        pieces: Iterator[str],
        callback: OnText | None,
        cancel: CancellationToken | None,
        reporter: ProgressReporter | None,
    ) -> str:
        """Collect a reply while others listen."""
        texts: list[str] = []
        while not (cancel and cancel.cancelled) and (text := self._timed(pieces)) is not None:
            texts.append(text)
            if callback and text:
                callback(text)
            if reporter:
                reporter.report(len(texts))
        if reporter:
            reporter.report(len(texts), final=True)
        return "".join(texts)

    def _timed(self, pieces: Iterator[str]) -> str | None:
        began = time.perf_counter_ns()
        text = next(pieces, None)
        self._metrics.decode_ns += time.perf_counter_ns() - began
        self._metrics.tokens_generated += text is not None
        return text

    # ---- step by step -----------------------------------------------------------------------------------------

    def prefill(self, tokens: ListOf[int]) -> None:
        """Compute tokens after those in memory."""
        self._feed(tokens)

    def forward_prefill(self, tokens: ListOf[int], pos_start: int) -> Floats:
        """Compute tokens that begin at position `pos_start`, which must be the length so far; the last one's logits."""
        self._at(pos_start)
        return self._feed(tokens)

    def forward_decode(self, token: int, pos: int) -> Floats:
        """Compute one token at position `pos`, which must be the length so far; its logits."""
        self._at(pos)
        return self._model.session.feed([token])

    def forward_one(self, token: int) -> Floats:
        """Compute one token after those in memory; its logits."""
        return self._model.session.feed([token])

    def truncate(self, n_tokens: int) -> None:
        """Behave as if only the first n tokens had been computed; more than there are is refused."""
        self._model.session.truncate(n_tokens)

    def _feed(self, tokens: ListOf[int]) -> Floats:
        session = self._model.session
        tokens = token_ids(tokens)
        with self._metrics.prefilling(len(tokens)):
            return session.feed(tokens)

    def _at(self, position: int) -> None:
        length = self._model.session.length
        if position != length:
            raise ConfigError(
                f"The position is {position}, but {length} tokens are in memory: go on there, or truncate."
            )

    # ---- memory -----------------------------------------------------------------------------------------------

    def kv_cache_seq_len(self) -> int:
        """How many tokens are in memory; 0 before loading."""
        return self._loaded.session.length if self._loaded else 0

    def kv_snapshot(self) -> KvCopy | None:
        """A copy of what is in memory; None before loading."""
        return self._loaded.session.copy() if self._loaded else None

    def kv_restore(self, copy: KvCopy) -> None:
        """Hold exactly what was copied."""
        self._model.session.restore(copy)

    def prime_with_prefix(self, cached: KvCopy, restore_to: int, suffix_tokens: ListOf[int]) -> Floats:
        """Restore the first `restore_to` tokens of a copy, compute only the suffix; the last logits."""
        model = self._model
        if not 0 <= restore_to <= len(cached.tokens):
            raise ConfigError(f"restore_to is {restore_to}, but the copy has {len(cached.tokens)} tokens.")
        model.session.restore(cached.first(restore_to))
        self._metrics.kv_hits += 1
        return self._feed(suffix_tokens)

    def store_kv_in_prefix_cache(self, tokens: ListOf[int], cache: PrefixStore) -> None:
        """Keep the keys and values of `tokens`, with which the text in memory begins; does nothing before loading."""
        if self._loaded is None:
            return
        if list(tokens) != self._loaded.session.tokens[: len(tokens)]:
            raise ConfigError("The text in memory does not begin with these tokens: prefill them first.")
        cache.store(self._loaded.session.copy().first(len(tokens)))

    # ---- search and embeddings --------------------------------------------------------------------------------

    def beam_generate(
        self,
        tokens: ListOf[int],
        config: BeamSearchConfig | None = None,
        eos_token_id: Callable[[int], bool] | int | None = None,
        grammar: Grammar | None = None,
    ) -> list[Hypothesis]:
        """The likeliest continuations of a prompt, the best first; the text in memory stays as it is.

        `eos_token_id` ends a text: the model's own end tokens, one token, or a function of a token. With a `grammar`,
        all texts are in its language or on the way to it.
        """
        model = self._model
        config = config or BeamSearchConfig()
        tokens = token_ids(tokens)
        if not isinstance(config, BeamSearchConfig):
            raise ConfigError(f"The search is asked for with {short(config)}, but it needs a BeamSearchConfig.")
        n_remaining = model.session.context_size - len(tokens)
        if n_remaining < 0 or not tokens:
            raise ConfigError(
                f"The prompt has {len(tokens)} tokens, but it must have 1 to {n_remaining + len(tokens)}."
            )
        config = replace(config, max_new_tokens=min(config.max_new_tokens, n_remaining))
        beams = EngineBeams(model.engine)
        ends = model.tokenizer.is_eos if eos_token_id is None else eos_token_id
        ends = ends.__eq__ if isinstance(ends, int) else ends
        try:
            return beam_search(beams, tokens, config, ends, model.grammars.state(grammar) if grammar else None)
        finally:
            beams.close()

    def embed(self, text: str) -> list[float]:
        """A text as a vector of length 1, pooled as the model's files say: else, the state of its last token."""
        return self.embed_with(text, None)

    def embed_with(self, text: str, pooling: Pooling | str | None) -> list[float]:
        """A text as a vector of length 1, pooled as asked."""
        return self.embed_batch([text], pooling)[0]

    def embed_batch(self, texts: ListOf[str], pooling: Pooling | str | None = None) -> list[list[float]]:
        """Embed each text like `embed_with`; they do not influence each other."""
        vectors: list[list[float]] = self.embed_numpy(texts, pooling).tolist()
        return vectors

    def embed_batch_with(self, texts: ListOf[str], pooling: Pooling | str | None) -> list[list[float]]:
        """Embed each text like `embed_with`: another name of `embed_batch`."""
        return self.embed_batch(texts, pooling)

    def embed_numpy(self, texts: ListOf[str], pooling: Pooling | str | None = None) -> Floats:
        """Embed texts into one array: [n_texts, width of a vector]."""
        several = texts if isinstance(texts, list) else texts_of(texts)
        return embed(self._model.engine, [self.tokenize(text) for text in several], EmbeddingOptions(pooling))

    # ---- counters ---------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """The live counters."""
        return self._metrics

    def metrics_snapshot(self) -> MetricsSnapshot:
        """The counters now, with rates."""
        return self._metrics.snapshot()

    # ---- adapters ---------------------------------------------------------------------------------------------

    def load_lora(self, path: LoraPath) -> ReadLora:
        """Read an adapter, a folder of PEFT's or a GGUF file, and check that it fits the model. Nothing changes yet."""
        adapters = self._model.engine.adapters
        return ReadLora(adapters.prepare(path), adapters)

    def push_lora(self, lora: Lora, scale: float = 1.0) -> None:
        """Put an adapter on the stack: what `load_lora` returned, or a path. Nothing changes before it is applied."""
        self._loras.push(lora, scale)

    def pop_lora(self) -> tuple[Lora, float] | None:
        """Take the last adapter off the stack; None if there is none."""
        return self._loras.wanted.pop() if self._loras.wanted else None

    def clear_loras(self) -> None:
        """Empty the stack; what is applied stays."""
        self._loras.wanted.clear()

    def lora_stack(self) -> list[tuple[Lora, float]]:
        """The adapters on the stack with their scales, the last pushed last."""
        return list(self._loras.wanted)

    def apply_lora_stack(self) -> None:
        """Change the model by the sum of the stack, in place of what was applied before; an empty one does nothing.

        The text in memory is computed again.
        """
        model = self._model
        if self._loras.wanted:
            self._apply(self._loras, model)

    def apply_lora_adapters(self, lora: Lora) -> None:
        """Change the model by one adapter alone, whatever is on the stack."""
        model = self._model
        alone = LoraStack()
        alone.push(lora, 1.0)
        self._apply(alone, model)

    def _apply(self, stack: LoraStack, model: LoadedModel) -> None:
        if stack.apply(model.engine.adapters):
            model.session.compute_again()

    def unapply_all_loras(self) -> None:
        """The model as it was loaded, and an empty stack; before loading there is nothing to do."""
        self._loras.wanted.clear()
        if self._loaded:
            self._apply(self._loras, self._loaded)

    # ---- snapshots --------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The text in memory and the configuration as bytes; `resume` goes on from there, in any process."""
        model = self._model
        return take(model.session, self.config, model.config.family, model.fingerprint)

    @staticmethod
    def snapshot_info(data: bytes) -> SnapshotInfo:
        """The header of a snapshot, without loading a model."""
        return read_info(data)

    @classmethod
    def resume(
        cls,
        data: bytes,
        model_path: str | None = None,
        *,
        download: bool = False,
        loras: ListOf[tuple[Lora, float]] = (),
    ) -> "InferenceEngine":
        """A loaded engine that goes on where the snapshot was taken; its file may have moved, but not changed.

        `loras` are the adapters that were applied then, with their scales, if there were any.

        A snapshot may come from a stranger, so the model it names is fetched only where `download` says so.
        """
        info, rows = unpack(data)
        path = model_path or find_again(info.config, download)
        if fingerprint_of_files(local_files(path).weights) != info.fingerprint:
            raise ModelFingerprintMismatch(
                f"The snapshot was made with other weights than those in {path}: give the right file."
            )
        engine = cls(replace(info.config, model_path=path, context_size=info.context_size, kv_dtype=info.kv_dtype))
        engine.load_model()
        for lora, scale in loras:
            engine.push_lora(lora, scale)
        engine.apply_lora_stack()
        put_back(engine._model.session, info, rows)
        return engine

    def __reduce__(self) -> NoReturn:
        raise TypeError("An InferenceEngine cannot be pickled: use snapshot() and InferenceEngine.resume().")


def check_max_tokens(max_tokens: int) -> None:
    if not N_NEW.holds(max_tokens):
        raise ConfigError(f"max_tokens is {max_tokens!r}, but it must be {N_NEW}.")


def find_again(config: InferenceConfig, download: bool) -> str:
    """Where a snapshot's model is now: at its old path, among the models on this machine, or fetched again."""
    if not config.origin or Path(config.model_path).exists():
        return config.model_path
    try:
        return str(hub.resolve(config.origin, download=download, unfit=unfit_for()).path)
    except ModelNotFound as error:
        if download:
            raise
        raise ModelNotFound(
            f"The snapshot's model {config.origin!r} is not on this machine: give model_path, "
            "or resume(..., download=True) if you trust the snapshot."
        ) from error
