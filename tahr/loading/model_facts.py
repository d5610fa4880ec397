"""Facts from the files of a model, for lists of models; the weights are not loaded."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tahr import hub
from tahr.hub.refs import quant_of
from tahr.loading.sidecars import read_text, sidecar
from tahr.models.loader.load import OpenedModel, open_model

DIGEST = re.compile(r"[0-9a-f]{64}")
MOST_CHARS = 4096  # limit on a value that is shown


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts a client may show."""

    format: str = ""  # gguf or safetensors
    family: str = ""
    n_parameters: int = 0
    quantization: str = ""
    size_bytes: int = 0  # weights on disk
    modified: float = 0.0  # seconds since the epoch
    digest: str = ""  # 64 hexadecimal digits that change with the files
    template: str = ""
    metadata: Mapping[str, Any] | None = None  # plain values only


def model_facts(model: str, quantization: str | None = None) -> ModelFacts:
    """The facts of a model that is on this machine."""
    files = hub.resolve(model, quant=quantization, download=False)
    source = open_model(files.weights, files.directory)
    stats = [path.stat() for path in files.weights]
    return ModelFacts(
        format=files.format,
        family=str(source.config.get("general.architecture") or source.config.get("model_type") or ""),
        n_parameters=sum(tensor.n_values for tensor in source.tensors.values()),
        quantization=quantization_of(files, source),
        size_bytes=sum(each.st_size for each in stats),
        modified=max(each.st_mtime for each in stats),
        digest=digest_of(files.weights),
        template=template_text(files, source),
        metadata=plain_values(source.config),
    )


def quantization_of(files: hub.ModelFiles, source: OpenedModel) -> str:
    """The one the file is named for, else the format of most of its weights."""
    n_values: Counter[str] = Counter()
    for tensor in source.tensors.values():
        n_values[tensor.format.name] += tensor.n_values
    return quant_of(files.weights[0].name) or (n_values.most_common(1)[0][0].upper() if n_values else "")


def digest_of(paths: tuple[Path, ...]) -> str:
    """The sha256 by which a cache keeps the file, else one of names, sizes and times: reading it all takes too long."""
    found = DIGEST.search(paths[0].resolve().name)
    if len(paths) == 1 and found:
        return found[0]
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def template_text(files: hub.ModelFiles, source: OpenedModel) -> str:
    text = source.config.get("tokenizer.chat_template")
    beside = files.directory / "chat_template.jinja" if files.directory else sidecar(files, "chat_template.jinja")
    if not isinstance(text, str) and beside and beside.is_file():
        text = read_text(beside)
    return text if isinstance(text, str) else ""


def plain_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, switches and short texts; not vocabularies."""
    kept = {name: value for name, value in config.items() if isinstance(value, bool | int | float | str)}
    return {name: value for name, value in kept.items() if not isinstance(value, str) or len(value) <= MOST_CHARS}
