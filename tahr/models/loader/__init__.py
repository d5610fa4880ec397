"""Files become a decoder on a backend: the registry of families stands above all of them."""

from tahr.models.loader.load import Loaded, OpenedModel, load, open_model
from tahr.models.loader.registry import FAMILIES, from_gguf, from_hf

__all__ = [
    "FAMILIES",
    "Loaded",
    "OpenedModel",
    "from_gguf",
    "from_hf",
    "load",
    "open_model",
]
