"""A model and its draft model, loaded into one engine for one text."""

from dataclasses import dataclass, replace

from tahr.engine.engine import Engine
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.draft_model import DraftModelProposer
from tahr.engine.speculation.speculator import Speculator
from tahr.errors import ConfigError
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.loaded_model import N_TEXTS, engine_config, local_files
from tahr.loading.builder import load_engine, open_tokenizer, tokenizer_at
from tahr.loading.speculation import check_same_vocabulary
from tahr.models.config.record import ModelConfig
from tahr.models.loader.drafters import is_drafter
from tahr.models.loader.load import OpenedModel, open_model
from tahr.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Both models, loaded."""

    engine: Engine
    tokenizer: Tokenizer
    config: ModelConfig  # configuration of the model, not of its draft
    speculator: Speculator
    proposer: DraftModelProposer


def load_pair(config: InferenceConfig, draft: str, n_most: int) -> ModelPair:
    """Both models on one backend; at most `n_most` tokens are drafted at once."""
    requested = replace(engine_config(config), spec_draft=draft, spec_tokens=n_most)
    files = local_files(config.model_path)
    source = open_model(files.weights, files.directory)
    tokenizer = tokenizer_at(config.tokenizer_path) if config.tokenizer_path else open_tokenizer(files, source)
    loaded = load_engine(source, tokenizer, requested, local_draft(draft, tokenizer), whole_texts=N_TEXTS)
    speculator = loaded.engine.speculator
    assert speculator and isinstance(speculator.proposer, DraftModelProposer)
    return ModelPair(loaded.engine, tokenizer, loaded.model_config, speculator, speculator.proposer)


def local_draft(path: str, tokenizer: Tokenizer) -> OpenedModel:
    """The draft model at a path; nothing is fetched."""
    files = local_files(path)
    source = open_model(files.weights, files.directory)
    if is_drafter(source):
        raise ConfigError(
            f"{files.name} is a drafter that was trained for a model, and a SpeculativeEngine takes a smaller model: "
            "use LLM with spec_draft."
        )
    check_same_vocabulary(files.name, open_tokenizer(files, source), tokenizer)
    return replace(source, name=files.name)


def keep(pair: ModelPair, seq: Sequence) -> None:
    """Let the pages of a sequence be found in the prefix cache, with what they hold of both models."""
    scheduler = pair.engine.scheduler
    assert scheduler.prefix
    seq.memory.hashes = scheduler.prefix.hashes()
    scheduler.prefix.insert(seq.memory.hashes, seq.tokens, seq.memory.tables, len(seq.tokens))
    pair.proposer.adopt(seq)
