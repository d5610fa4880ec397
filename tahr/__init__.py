"""Tahr: an LLM inference engine. `from tahr import LLM, SamplingParams`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tahr.config import EngineConfig, SamplingParams
    from tahr.errors import TahrError
    from tahr.library.async_llm import AsyncLLM
    from tahr.library.beam import BeamSearchConfig
    from tahr.library.embeddings import Pooling
    from tahr.library.inference.config import InferenceConfig
    from tahr.library.inference.engine import InferenceEngine
    from tahr.library.inference.prefix_store import PrefixStore
    from tahr.library.inference.session_progress import CancellationToken
    from tahr.library.llm import LLM, Chunk, Completion
    from tahr.library.speculative.speculative_engine import SpeculativeEngine

# Imported on first use: `tahr --version` must not wait for NumPy.
_HOME = {
    "LLM": "tahr.library.llm",
    "AsyncLLM": "tahr.library.async_llm",
    "BeamSearchConfig": "tahr.library.beam",
    "CancellationToken": "tahr.library.inference.session_progress",
    "Chunk": "tahr.library.llm",
    "Completion": "tahr.library.llm",
    "EngineConfig": "tahr.config",
    "InferenceConfig": "tahr.library.inference.config",
    "InferenceEngine": "tahr.library.inference.engine",
    "Pooling": "tahr.library.embeddings",
    "PrefixStore": "tahr.library.inference.prefix_store",
    "SamplingParams": "tahr.config",
    "SpeculativeEngine": "tahr.library.speculative.speculative_engine",
    "TahrError": "tahr.errors",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchConfig",
    "CancellationToken",
    "Chunk",
    "Completion",
    "EngineConfig",
    "InferenceConfig",
    "InferenceEngine",
    "Pooling",
    "PrefixStore",
    "SamplingParams",
    "SpeculativeEngine",
    "TahrError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tahr' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
