"""The result of every source: where a model's files are, and one line for the list of models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tahr.hub.refs import Ref

Format = Literal["gguf", "safetensors"]
Status = Literal["ready", "incomplete"]


@dataclass(frozen=True)
class ModelFiles:
    """A model whose files are all on disk."""

    ref: Ref
    name: str
    format: Format
    weights: tuple[Path, ...]  # one .gguf, all parts of a split one in order, or the safetensors files
    directory: Path | None = None  # holds config.json and tokenizer.json; None for a GGUF, which carries both
    sidecars: tuple[Path, ...] = ()  # small files that came with a GGUF, such as tokenizer.json

    @property
    def path(self) -> Path:
        """The one path to show to a person, and to give back to Tahr."""
        return self.directory or self.weights[0]


@dataclass(frozen=True)
class ModelEntry:
    """One model on this machine."""

    name: str  # argument of `tahr run` and `tahr rm`
    size_bytes: int
    status: Status
    modified: float  # seconds since the epoch
    source: Literal["hf", "ollama", "pypi"]
