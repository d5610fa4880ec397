"""Engines of encoders: tokens see those after them, so a text is computed in one step, and nothing of it is kept."""

from dataclasses import replace

from tahr.backends.api import Backend
from tahr.config import EngineConfig
from tahr.engine.scheduling.work import MAX_CHUNK
from tahr.errors import ConfigError
from tahr.kv.pages import pages_for
from tahr.models.config.record import ModelConfig

STEP_TOKENS = 2048  # tokens of texts computed together, by default
STEP_TEXTS = 256  # likewise
PAGE_SIZE = 16  # small, because texts are short and each begins a page


def encoder_config(config: EngineConfig, backend: Backend) -> EngineConfig:
    """Adapt a configuration to encoders: batches by tokens, no reuse of common beginnings."""
    if (config.spec_ngram or config.spec_draft) and not config.spec_off:
        raise ConfigError("This model embeds texts and generates none, so there is nothing to guess: leave spec_* out.")
    return replace(
        config,
        kv_dtype=config.kv_dtype or backend.passing_kv_dtype,
        page_size=PAGE_SIZE,
        max_batch_size=config.max_batch_size or STEP_TEXTS,
        prefill_chunk_size=MAX_CHUNK,
        max_prefill_tokens=config.max_prefill_tokens or max(STEP_TOKENS, backend.step_defaults.n_prefill_tokens or 0),
        admit_below=1.0,  # texts do not grow
        prefix_cache=False,
    )


def longest_text(model: ModelConfig) -> int:
    """The context of a model; an encoder's must fit a step."""
    return min(model.max_context, MAX_CHUNK) if model.bidirectional else model.max_context


def n_full_texts(config: EngineConfig, model: ModelConfig, backend: Backend) -> int:
    """How many texts of full length there is memory for: as many as steps in flight need."""
    context = config.context_size or longest_text(model)
    n_tokens = max(config.max_prefill_tokens or STEP_TOKENS, context)
    n_pages = pages_for(n_tokens, config.page_size) + (config.max_batch_size or STEP_TEXTS)
    return -(-n_pages // pages_for(context, config.page_size)) * (2 if backend.overlaps else 1)
