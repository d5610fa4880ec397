"""Opens an adapter, whichever of the two kinds of files it is."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tahr.errors import AdapterError
from tahr.models.loader.load import is_gguf
from tahr.models.loader.registry import family_of
from tahr.models.lora.adapter import Adapter, AdapterTarget, RawFactors, make_adapter
from tahr.models.lora.gguf import read_gguf_adapter
from tahr.models.lora.peft import CONFIG_NAME, read_peft_adapter
from tahr.models.lora.read import ReadAdapter
from tahr.models.parts.arrange import Tensors
from tahr.weights.watch import refuse_changed


def open_adapter(path: Path, target: AdapterTarget) -> Adapter:
    """The adapter at a path, a folder as PEFT saves it or a GGUF file; refused if it does not fit the model."""
    try:
        read = read_adapter(path.expanduser(), target)
    except (OSError, RuntimeError) as error:  # a path no disk has, say, or `~nobody/x`, or a file we may not read
        why = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise AdapterError(
            f"The adapter at {str(path)!r} cannot be read: {why}. Check the path, and that you may read it."
        ) from error
    adapter = make_adapter(split_fused(read.factors, target), target, read.base, read.notes)
    refuse_changed(side.source for raw in read.factors.values() for side in (raw.a, raw.b) if side)
    return adapter


def read_adapter(path: Path, target: AdapterTarget) -> ReadAdapter:
    if path.is_dir():
        return read_peft_adapter(path, target)
    if path.name == CONFIG_NAME:
        return read_peft_adapter(path.parent, target)
    if path.is_file() and is_gguf(path):
        return read_gguf_adapter(path, target)
    raise AdapterError(
        f"There is no adapter at {str(path)!r}: name a folder with an {CONFIG_NAME}, or a GGUF file of an adapter."
    )


def split_fused(factors: Mapping[str, RawFactors], target: AdapterTarget) -> dict[str, RawFactors]:
    """Where files have several linears in one matrix, what an adapter adds to it is cut as the matrix itself is."""
    arrange = family_of(target.config).arrange
    out = {}
    for name, raw in factors.items():
        if name in target.linears or raw.b is None:
            out[name] = raw
            continue
        parts = arrange(target.config, Tensors({f"{name}.weight": raw.b}))
        cut = {part.removesuffix(".weight"): replace(raw, b=parts[part]) for part in parts}
        if twice := cut.keys() & factors.keys() - {name}:
            raise AdapterError(f"The adapter changes {min(twice)} twice, once as a part of {name}: fetch it again.")
        out |= cut
    return out
