"""What ops a model takes: configurations, blocks, families, and loading them onto a backend."""

from tahr.models.config import ModelConfig, MoeConfig
from tahr.models.decoder import Decoder
from tahr.models.family import Family
from tahr.models.loader import Loaded, OpenedModel, load, open_model
from tahr.models.registry import FAMILIES, from_gguf, from_hf

__all__ = [
    "FAMILIES",
    "Decoder",
    "Family",
    "Loaded",
    "ModelConfig",
    "MoeConfig",
    "OpenedModel",
    "from_gguf",
    "from_hf",
    "load",
    "open_model",
]
