"""Parts of a loaded model that only those have which write down recordings."""

from dataclasses import replace

from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.models.config.record import ModelConfig
from tahr.models.loader.load import OpenedModel
from tahr.speech.decoding.tokens import SpeechTokens, heads_of, read_tokens
from tahr.text.tokens.tokenizer import Tokenizer


def speech_tokens(source: OpenedModel, config: ModelConfig, tokenizer: Tokenizer) -> SpeechTokens | None:
    """The special tokens of a model that writes down recordings."""
    if not config.audio:
        return None
    generation = source.generation
    tokens = read_tokens(generation, tokenizer.special_ids, min(config.n_vocab, tokenizer.n_vocab))
    return replace(tokens, alignment_heads=heads_of(generation, config.n_layers, config.n_heads))


def refuse_drafts(source: OpenedModel, config: EngineConfig) -> None:
    """Refuse what would be loaded for nothing: texts of recordings are not drafted."""
    wanted = next((name for name in ("spec_ngram", "spec_draft") if getattr(config, name)), None)
    if wanted and not config.spec_off and source.model_config().audio:
        raise ConfigError(f"{wanted} is set, but texts of recordings are not drafted: leave it out.")
