"""Opens an adapter, whichever of the two kinds of files it is."""

from pathlib import Path

from tahr.errors import AdapterError
from tahr.models.loader import is_gguf
from tahr.models.lora.adapter import Adapter, AdapterTarget, make_adapter
from tahr.models.lora.gguf import read_gguf_adapter
from tahr.models.lora.peft import CONFIG_NAME, read_peft_adapter


def open_adapter(path: Path, target: AdapterTarget) -> Adapter:
    """The adapter at a path, a folder as PEFT saves it or a GGUF file; refused if it does not fit the model."""
    path = path.expanduser()
    if path.is_dir():
        read = read_peft_adapter(path, target)
    elif path.name == CONFIG_NAME:
        read = read_peft_adapter(path.parent, target)
    elif path.exists() and is_gguf(path):
        read = read_gguf_adapter(path, target)
    else:
        raise AdapterError(
            f"There is no adapter at {str(path)!r}: name a folder with an {CONFIG_NAME}, or a GGUF file of an adapter."
        )
    return make_adapter(read.factors, target, read.base, read.notes)
