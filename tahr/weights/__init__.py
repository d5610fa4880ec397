"""Weight files: what is in them, checked, and never copied."""

from tahr.weights.formats import BY_GGML_ID, FORMATS, Format, format_named
from tahr.weights.gguf import GGUFFile, open_gguf
from tahr.weights.metadata import MetadataArray
from tahr.weights.safetensors import SafetensorsFile, open_safetensors
from tahr.weights.tensor import HostTensor
from tahr.weights.verify import Verified, verify
from tahr.weights.watch import FileWatch

__all__ = [
    "BY_GGML_ID",
    "FORMATS",
    "FileWatch",
    "Format",
    "GGUFFile",
    "HostTensor",
    "MetadataArray",
    "SafetensorsFile",
    "Verified",
    "format_named",
    "open_gguf",
    "open_safetensors",
    "verify",
]
