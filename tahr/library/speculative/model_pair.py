"""A model and its draft model, loaded into one engine for one text."""

from dataclasses import dataclass

from tahr.backends import open_backend, useful_threads
from tahr.backends.api import Backend
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.scheduling.work import MAX_CHUNK
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.draft_model import DraftModelProposer
from tahr.engine.speculation.speculator import Speculator
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.loaded_model import N_TEXTS, local_files
from tahr.loading.builder import breakers, build_engine, check_vocabulary, open_tokenizer, tokenizer_at
from tahr.loading.speculation import Draft, check_same_vocabulary
from tahr.models.decoder import Decoder
from tahr.models.loader.load import load, open_model
from tahr.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Both models, loaded."""

    engine: Engine
    tokenizer: Tokenizer
    decoder: Decoder
    speculator: Speculator
    proposer: DraftModelProposer


def load_pair(config: InferenceConfig, draft: str, n_most: int) -> ModelPair:
    """Both models on one backend; at most `n_most` tokens are drafted at once."""
    asked = EngineConfig(
        context_size=config.context_size,
        kv_dtype=config.kv_dtype,
        prefill_chunk_size=min(config.prefill_chunk_size or MAX_CHUNK, MAX_CHUNK),
        spec_draft=draft,
        spec_tokens=n_most,
    )
    files = local_files(config.model_path)
    source = open_model(files.weights, files.directory)
    tokenizer = tokenizer_at(config.tokenizer_path) if config.tokenizer_path else open_tokenizer(files, source)
    backend = open_backend(config.backend, useful_threads(config.num_threads), config.deterministic)
    loaded = load(source, backend)
    check_vocabulary(tokenizer, loaded.config, files.name)
    engine, _ = build_engine(
        backend,
        loaded.decoder,
        asked,
        tokenizer.eos_ids,
        breakers(tokenizer),
        tokenizer.n_vocab,
        whole_texts=N_TEXTS,
        draft=local_draft(draft, backend, tokenizer),
    )
    speculator = engine.speculator
    assert speculator and isinstance(speculator.proposer, DraftModelProposer)
    return ModelPair(engine, tokenizer, loaded.decoder, speculator, speculator.proposer)


def local_draft(path: str, backend: Backend, tokenizer: Tokenizer) -> Draft:
    """The draft model at a path; nothing is fetched."""
    files = local_files(path)
    source = open_model(files.weights, files.directory)
    check_same_vocabulary(files.name, open_tokenizer(files, source), tokenizer)
    loaded = load(source, backend)
    check_vocabulary(tokenizer, loaded.config, files.name)
    return Draft(files.name, loaded.decoder)


def keep(pair: ModelPair, seq: Sequence) -> None:
    """Let the pages of a sequence be found in the prefix cache, with what they hold of both models."""
    scheduler = pair.engine.scheduler
    assert scheduler.prefix
    seq.hashes = scheduler.prefix.hashes()
    scheduler.prefix.insert(seq.hashes, seq.tokens, seq.tables, len(seq.tokens))
    pair.proposer.adopt(seq)
