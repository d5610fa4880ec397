"""The bodies of replies about models and the server."""

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct


class Modalities(Struct):
    """Forms of what a model reads and writes, as OpenRouter and llama.cpp name them."""

    input_modalities: list[str]
    output_modalities: list[str]


class ModelCard(Struct):
    id: str
    created: int
    context_size: int | None  # None: the model was not loaded yet
    root: str  # the base model, where an adapter is added to one
    parent: str | None = None  # the same; None: it is a base model
    state: str = "loaded"  # "loading", "unloading" or "unloaded" in a pool: requests load it
    architecture: Modalities | None = None  # None: the model was not loaded yet
    object: str = "model"
    owned_by: str = "tahr"
    type: str = "model"  # this and what follows are Anthropic's
    display_name: str = ""
    created_at: str = ""

    def __post_init__(self) -> None:
        self.display_name = self.display_name or self.id
        self.created_at = self.created_at or datetime.fromtimestamp(self.created, UTC).isoformat()


class ModelList(Struct):
    """All models. The last three fields are Anthropic's: there is one page."""

    data: list[ModelCard]
    object: str = "list"
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class Version(Struct):
    version: str


class HealthReply(Struct):
    """How the server is."""

    status: str
    timestamp: float
    version: str
    engine: dict[str, Any]
    scheduler: dict[str, Any]
    admission: dict[str, Any]
    cache: dict[str, Any]
    lora: dict[str, Any]
    config: dict[str, Any]
    auto_config: dict[str, Any]
    models: dict[str, Any]
