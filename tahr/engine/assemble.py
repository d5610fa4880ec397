"""Puts an engine together: files, tokenizer, template, backend, model, memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tahr import hub
from tahr.backends import open_backend
from tahr.backends.api import Backend, StepLimits
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.capacity import measure, pages_for
from tahr.engine.engine import Engine
from tahr.engine.runner import Runner
from tahr.engine.scheduler import Limits, Scheduler
from tahr.errors import ConfigError, TokenizerError
from tahr.kv.pages import PagePool
from tahr.models.config import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.loader import Loaded, Source, load, open_model
from tahr.text.chat import ChatTemplate
from tahr.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Assembled:
    """Everything a loaded model is made of."""

    name: str
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model_config: ModelConfig
    sampling: SamplingParams
    log: list[str]
    backend_summary: str


def build_engine(
    backend: Backend, decoder: Decoder, config: EngineConfig, is_eos: Callable[[int], bool]
) -> tuple[Engine, str]:
    """An engine around a decoder, and a note on its memory."""
    dtype = config.kv_dtype or backend.kv_dtypes[0]
    if dtype not in backend.kv_dtypes:
        raise ConfigError(
            f"KV type {dtype!r} is not one the {backend.name} backend has: {', '.join(backend.kv_dtypes)}."
        )
    room = measure(config, decoder.kv_shapes, dtype, decoder.config.max_context)
    chunk = min(config.prefill_chunk_size, room.context_size)
    n_seqs = config.max_batch_size
    limits = StepLimits(chunk + n_seqs, n_seqs, n_seqs, pages_for(room.context_size, config.page_size))
    kv = backend.kv_store(decoder.kv_shapes, room.n_pages, config.page_size, dtype)
    runner = Runner(backend, decoder, kv, limits)
    scheduler = Scheduler(PagePool(room.n_pages), config.page_size, Limits(limits.n_tokens, n_seqs, chunk))
    note = f"KV: {room.n_pages} pages of {config.page_size} tokens in {dtype}, {room.kv_bytes / 1e6:.0f} MB at most"
    return Engine(scheduler, runner, room.context_size, decoder.config.n_vocab, is_eos), "; ".join(
        filter(None, [note, room.note])
    )
