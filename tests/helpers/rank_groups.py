"""Engines over ranks in processes, and those over virtual ranks that they are held to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tahr import LLM
from tahr.backends.cpu.backend import CpuBackend
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.loading.builder import build_engine
from tahr.loading.ranks import RankProcessesOf
from tahr.loading.sizing import SizingBackend, size_up
from tahr.models.loader.load import load, open_model

SIZES: dict[str, Any] = {"backend": "cpu", "n_threads": 2, "context_size": 128, "page_size": 8, "kv_dtype": "f32"}


def opened(path: Path, **options: Any) -> LLM:
    return LLM(str(path), config=EngineConfig(**{**SIZES, **options}))


def group_of(llm: LLM) -> Any:
    """The processes of a model."""
    return llm.engine.executor.group  # type: ignore[attr-defined]


def engines_of(folder: Path, n_ranks: int) -> tuple[Engine, Engine]:
    """A checkpoint without a tokenizer over virtual ranks, and over processes."""
    source = open_model([], folder)
    backend = CpuBackend(2)
    config = EngineConfig(context_size=32, page_size=8, kv_dtype="f32")
    virtual = build_engine(backend, load(source, backend, n_ranks=n_ranks).decoder, config)[0]
    sized = size_up(source, SizingBackend(backend), n_ranks=n_ranks)  # type: ignore[arg-type]
    shared = replace(config, n_threads=2, tensor_parallel=n_ranks)
    ranks = RankProcessesOf(source, shared, sized.n_weight_bytes)
    return virtual, build_engine(backend, sized.decoder, shared, ranks=ranks)[0]


def is_there(pid: int) -> bool:
    """Whether a process runs or stands still, but is not over."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
