"""The tower of a GGUF model: the file that is named, or the one that lies beside the model."""

from pathlib import Path

from tahr.config import EngineConfig
from tahr.errors import ConfigError, LoadError, ModelNotFound
from tahr.hub.pick import projector_among
from tahr.hub.refs import expanded
from tahr.models.loader.load import OpenedModel
from tahr.models.loader.projector import may_see, with_tower


def with_projector(source: OpenedModel, weights: Path, config: EngineConfig) -> tuple[OpenedModel, str]:
    """The model with its tower, and a line for the load log."""
    if config.mmproj is not None:
        return with_named(source, expanded(config.mmproj))
    beside = beside_of(weights) if may_see(source) else None
    if beside is None:
        return source, ""
    try:
        return with_tower(source, beside), f"Images are read by {beside.name}."
    except LoadError as error:
        return source, f"{beside.name} lies beside the model and is not used, so it reads texts alone: {error}"


def with_named(source: OpenedModel, path: Path) -> tuple[OpenedModel, str]:
    """The model with a tower that somebody asked for: it must fit."""
    if source.format != "gguf":
        raise ConfigError("mmproj is the tower of a GGUF, but this model is in safetensors with its own: leave it out.")
    if not path.is_file():
        raise ModelNotFound(f"There is no mmproj file {str(path)!r}: check the path.")
    return with_tower(source, path), f"Images are read by {path.name}."


def beside_of(weights: Path) -> Path | None:
    """The mmproj file in a model's folder."""
    folder = weights.parent
    names = [path.name for path in folder.iterdir() if path.is_file()]
    name = projector_among(names)
    return folder / name if name else None
