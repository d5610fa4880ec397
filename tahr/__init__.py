"""Tahr: an LLM inference engine. `from tahr import LLM, SamplingParams`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tahr.config import EngineConfig, SamplingParams
    from tahr.engine.async_llm import AsyncLLM
    from tahr.engine.beam import BeamSearchConfig
    from tahr.engine.embed import Pooling
    from tahr.engine.inference import InferenceEngine
    from tahr.engine.inference_config import InferenceConfig
    from tahr.engine.llm import LLM, Chunk, Completion
    from tahr.engine.prefix_store import PrefixStore
    from tahr.engine.watch import CancellationToken
    from tahr.errors import TahrError

# Imported on first use: `tahr --version` must not wait for NumPy.
_HOME = {
    "LLM": "tahr.engine.llm",
    "AsyncLLM": "tahr.engine.async_llm",
    "BeamSearchConfig": "tahr.engine.beam",
    "CancellationToken": "tahr.engine.watch",
    "Chunk": "tahr.engine.llm",
    "Completion": "tahr.engine.llm",
    "EngineConfig": "tahr.config",
    "InferenceConfig": "tahr.engine.inference_config",
    "InferenceEngine": "tahr.engine.inference",
    "Pooling": "tahr.engine.embed",
    "PrefixStore": "tahr.engine.prefix_store",
    "SamplingParams": "tahr.config",
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
    "TahrError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tahr' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
