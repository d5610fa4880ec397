"""Tahr: an LLM inference engine. `from tahr import LLM, SamplingParams`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tahr.config import EngineConfig, SamplingParams
    from tahr.engine.llm import LLM, Chunk, Completion
    from tahr.errors import TahrError

# Imported on first use: `tahr --version` must not wait for NumPy.
_HOME = {
    "LLM": "tahr.engine.llm",
    "Chunk": "tahr.engine.llm",
    "Completion": "tahr.engine.llm",
    "EngineConfig": "tahr.config",
    "SamplingParams": "tahr.config",
    "TahrError": "tahr.errors",
}

__all__ = ["LLM", "Chunk", "Completion", "EngineConfig", "SamplingParams", "TahrError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tahr' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
