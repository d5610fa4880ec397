"""GGUF models with the towers that stand in files of their own."""

from dataclasses import replace
from pathlib import Path

from tahr.errors import CorruptFile
from tahr.models.config.fields import Fields
from tahr.models.loader.load import OpenedModel
from tahr.models.towers.mmproj import (
    KINDS,
    PLACEHOLDER,
    PLACEHOLDERS,
    as_config,
    as_preprocessor,
    check_kind,
    named_as_checkpoint,
)
from tahr.weights import open_gguf


def may_see(model: OpenedModel) -> bool:
    """Whether there are towers for a model of this architecture."""
    return model.format == "gguf" and model.config.get("general.architecture") in KINDS


def with_tower(model: OpenedModel, path: Path) -> OpenedModel:
    """A GGUF model that reads images with the tower in another file, which must be its own."""
    found = open_gguf(path)
    f = Fields(found.metadata, f"the metadata of {path.name}")
    kind = check_kind(f, str(model.config.get("general.architecture")))
    described = as_config(f, kind, found.tensors)
    vision = described["vision_config"]
    config = {
        **model.config,
        **described,
        "preprocessor_config": as_preprocessor(f, vision),
        "image_token_id": placeholder_of(model, kind),
        "projector_type": kind,
    }
    tower = named_as_checkpoint(found.tensors, vision)
    if replaced := sorted(tower.keys() & model.tensors.keys()):
        raise CorruptFile(
            f"{path.name} has tensors of the text model, such as {replaced[0]}: take its own mmproj file."
        )
    tensors = {**model.tensors, **tower}
    made = replace(model, config=config, tensors=tensors, n_bytes=model.n_bytes + found.n_bytes)
    made.model_config()  # refuses what does not belong together
    return made


def placeholder_of(model: OpenedModel, kind: str) -> int:
    """The token that stands for an image."""
    tokens = model.config.get("tokenizer.ggml.tokens")
    name = PLACEHOLDERS.get(kind, PLACEHOLDER)
    if tokens is None or name not in tokens:
        raise CorruptFile(f"The model's vocabulary has no {name}, so nothing can stand for an image in it.")
    return list(tokens).index(name)
