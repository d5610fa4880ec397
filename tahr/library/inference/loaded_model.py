"""A model on a backend with a session of its own: what loading an `InferenceEngine` gives."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tahr import hub
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.scheduling.work import MAX_CHUNK
from tahr.errors import ConfigError, ModelNotFound
from tahr.grammar.compiler import GrammarCompiler
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.session import Session
from tahr.library.inputs.arguments import short
from tahr.loading.builder import load_engine, open_tokenizer, tokenizer_at, useful_threads
from tahr.loading.fingerprint import fingerprint_of_bytes, fingerprint_of_files
from tahr.models.config.record import ModelConfig
from tahr.models.loader.load import OpenedModel, open_model
from tahr.text.tokens.tokenizer import Tokenizer

N_SEQS = 64  # beams, or texts to embed, of one step
N_TEXTS = 2  # full texts that fit the pool


@dataclass(frozen=True)
class LoadedModel:
    """Everything an engine for one text is made of."""

    engine: Engine
    config: ModelConfig
    tokenizer: Tokenizer
    session: Session
    find_fingerprint: Callable[[], str]

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiles the grammars of requests."""
        return GrammarCompiler(self.tokenizer)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the model's files in a few characters: made on first use, because files can be large."""
        return self.find_fingerprint()


def load_path(config: InferenceConfig) -> LoadedModel:
    """The model at `config.model_path`; nothing is fetched."""
    files = local_files(config.model_path)
    source = open_model(files.weights, files.directory)
    tokenizer = tokenizer_at(config.tokenizer_path) if config.tokenizer_path else open_tokenizer(files, source)
    return build(config, source, tokenizer, lambda: fingerprint_of_files(files.weights))


def load_bytes(
    config: InferenceConfig, data: bytes | bytearray | memoryview, tokenizer_json: bytes | str | None
) -> LoadedModel:
    """The model in the bytes of a GGUF file."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ConfigError(f"The model is {short(data)}, but it must be the bytes of a GGUF file.")
    data = bytes(data)  # no copy of what cannot change
    source = open_model(data)
    tokenizer = Tokenizer.from_json(tokenizer_json) if tokenizer_json else Tokenizer.from_gguf(source.config)
    return build(config, source, tokenizer, lambda: fingerprint_of_bytes(data))


def build(
    config: InferenceConfig, source: OpenedModel, tokenizer: Tokenizer, fingerprint: Callable[[], str]
) -> LoadedModel:
    """Beams and embeddings have the memory of a second text."""
    requested = replace(engine_config(config), max_batch_size=N_SEQS, prefix_cache=False)
    loaded = load_engine(source, tokenizer, requested, whole_texts=N_TEXTS)
    session = Session(loaded.engine, model=object())
    return LoadedModel(loaded.engine, loaded.model_config, tokenizer, session, fingerprint)


def engine_config(config: InferenceConfig) -> EngineConfig:
    """Configuration of an engine for one text."""
    return EngineConfig(
        backend=config.backend,
        n_threads=useful_threads(config.num_threads),
        deterministic=config.deterministic,
        context_size=config.context_size,
        kv_dtype=config.kv_dtype,
        prefill_chunk_size=min(config.prefill_chunk_size or MAX_CHUNK, MAX_CHUNK),
    )


def local_files(path: str) -> hub.ModelFiles:
    if not path or not Path(path).exists():
        raise ModelNotFound(
            f"There is no file or directory {path!r}: set model_path to one, or let InferenceEngine.from_hub fetch it."
        )
    return hub.resolve(str(Path(path).absolute()))
