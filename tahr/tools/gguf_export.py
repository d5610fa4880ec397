"""Writes a model anew as one GGUF file: converted from a checkpoint, quantised, or both."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from tahr import hub
from tahr.errors import ConfigError, QuantError
from tahr.models.loader.convert import convert
from tahr.models.loader.load import open_model
from tahr.text.gguf.fields import gguf_fields
from tahr.tools.convert_check import refuse_unloadable
from tahr.tools.lora_merge import merged
from tahr.weights import open_gguf
from tahr.weights.dequantise.bits import Bytes
from tahr.weights.formats import FORMATS, Format
from tahr.weights.gguf_write import Entry, Part, stored_metadata, write_gguf
from tahr.weights.quantise.quantiser import FLOATS, QUANTISERS, pieces
from tahr.weights.quantise.recipes import MIXES, Recipe, keeps_meaning, mix_named, recipe_for
from tahr.weights.tensor import HostTensor
from tahr.weights.watch import refuse_changed

QUANTIZATION_VERSION = 2  # version of block layouts; files without it count as too old
# Metadata that describes the old file alone.
NOT_COPIED = ("general.alignment", "split.")


@dataclass(frozen=True, slots=True)
class Model:
    """A model about to be written."""

    metadata: Mapping[str, Any]
    parts: list[Part]
    notes: list[str]
    tensors: Iterable[HostTensor]  # inputs of the tensor
    file_type: int | None = None  # the number of its mix, where it is a GGUF that says so


@dataclass(frozen=True, slots=True)
class Written:
    """The file that was written."""

    path: Path
    mix: str
    n_bytes_before: int
    n_bytes: int
    formats: dict[str, int]  # format -> number of tensors
    notes: list[str]


def export(
    files: hub.ModelFiles,
    out: Path,
    mix: str | None,
    *,
    requantize: bool = False,
    progress: hub.Progress | None = None,
    lora: tuple[Path, float] | None = None,
) -> Written:
    """Write the model to `out` in the formats of `mix`; None keeps matrices as they are.

    `lora` is an adapter to add to the weights, and its scale.
    """
    refuse_overwriting([*files.weights, files.directory, lora[0].expanduser() if lora else None], out)
    name, recipe_of = (None, None) if mix is None else mix_named(mix)
    model = read_gguf(files) if files.format == "gguf" else read_checkpoint(files)
    model = replace(model, parts=merged(model.parts, files, *lora)) if lora else model
    recipe = recipe_for(recipe_of, {part.name: part.shape for part in model.parts}) if recipe_of else None
    if recipe and not requantize:
        refuse_twice(model.parts, recipe)
    entries = [entry(part, target(part, recipe)) for part in model.parts]
    kept = model.file_type if recipe is None else None
    name = name or mix_numbered(kept) or plain_name(entries)
    file_type = MIXES[name].file_type if kept is None else kept
    versions = {"general.file_type": file_type, "general.quantization_version": QUANTIZATION_VERSION}
    bar = progress or hub.Progress()
    bar.start(out.name, sum(one.n_bytes for one in entries))
    try:
        unchanged = partial(refuse_changed, (tensor.source for tensor in model.tensors))
        write_gguf(out, {**model.metadata, **versions}, entries, bar.advance, unchanged)
    finally:
        bar.finish()
    before = sum(part.format.n_bytes(prod(part.shape)) for part in model.parts)
    formats = dict(Counter(one.format.name for one in entries))
    return Written(out, name, before, out.stat().st_size, formats, model.notes)


def refuse_overwriting(read: Iterable[Path | None], out: Path) -> None:
    """`read` are files, and folders whose files are read; a GGUF in such a folder is none of them."""
    place = link_end(out)
    sources = {path.resolve(): path for path in read if path}
    if place in sources and not out.is_dir():
        raise ConfigError(f"{out} is the file that is read. Give another name to write to.")
    if (folder := sources.get(place.parent)) and out.is_file() and place.suffix != ".gguf":
        raise ConfigError(f"{out} is a file of {folder}, which is read. Give another name to write to.")
    if out.is_dir():
        raise ConfigError(f"{out} is a directory. Give the name of a file in it.")
    if out.exists() and not out.is_file():  # a device such as /dev/null, whose place the new file would take
        raise ConfigError(f"{out} is no plain file, and a GGUF cannot be written to it. Give the name of a file.")


def link_end(out: Path) -> Path:
    """Where a path leads."""
    try:
        place = out.resolve()
    except RuntimeError:  # older Pythons raise this; newer ones return the link
        place = out
    if place.is_symlink():
        raise ConfigError(f"{out} is a link that leads to itself. Give another name to write to.")
    return place


def read_gguf(files: hub.ModelFiles) -> Model:
    opened = open_gguf(files.weights[0])
    kept = {key: value for key, value in stored_metadata(opened).items() if not key.startswith(NOT_COPIED)}
    parts = [Part(t.name, t.format, t.shape, lambda t=t: t) for t in opened.tensors.values()]  # type: ignore[misc]
    file_type = opened.metadata.get("general.file_type")
    return Model(kept, parts, [], opened.tensors.values(), file_type if isinstance(file_type, int) else None)


def read_checkpoint(files: hub.ModelFiles) -> Model:
    assert files.directory is not None
    source = replace(open_model(files.weights, files.directory), name=title(files))
    converted = convert(source)
    refuse_unloadable(converted)
    tokenizer = gguf_fields(files.directory, converted.config.n_vocab)
    left = converted.left_out
    notes = [f"Left out, because GGUF keeps language models alone: {', '.join(left[:5])}{', ...' * (len(left) > 5)}"]
    return Model({**converted.metadata, **tokenizer}, converted.parts, notes if left else [], source.tensors.values())


def title(files: hub.ModelFiles) -> str:
    """Title of a checkpoint: its repository, which the cache keeps in folders of commits, or its own folder."""
    if files.ref.path is None or files.directory is None:
        return files.ref.repo.rpartition("/")[2] or files.name
    folder = files.directory
    return folder.resolve().name if folder.name in ("", "..") else folder.name


def target(part: Part, recipe: Recipe | None) -> Format:
    """The format a tensor is to have."""
    wanted = recipe.format_for(part.name, part.shape) if recipe else None
    if wanted:
        return wanted
    # Other programs want norms and biases in f32; what is quantised already, or no float at all, is copied.
    delicate = not keeps_meaning(part.name, part.shape) and part.format.name in FLOATS
    return FORMATS["F32"] if delicate or part.format.name == "F64" else part.format


def refuse_twice(parts: Iterable[Part], recipe: Recipe) -> None:
    for part in parts:
        if part.format.name not in FLOATS and target(part, recipe) is not part.format:
            raise QuantError(
                f"Tensor {part.name} is {part.format.name} already, and quantising it again loses more than once from "
                "a float file. Start from an F16, BF16 or F32 file, or use `tahr quantize --requantize` to do it all "
                "the same."
            )


def entry(part: Part, stored_as: Format) -> Entry:
    def made() -> Iterator[Bytes]:
        tensor = part.make()
        yield from pieces(tensor, stored_as)
        tensor.forget()

    return Entry(part.name, stored_as, part.shape, made)


def mix_numbered(file_type: int | None) -> str | None:
    """The mix that a GGUF of this number has; None where Tahr does not write it."""
    return next((name for name, mix in MIXES.items() if mix.file_type == file_type), None)


def plain_name(entries: Iterable[Entry]) -> str:
    """The mix that most matrices already have."""
    counted = Counter(one.format.name for one in entries if len(one.shape) > 1 and one.format.name in QUANTISERS)
    common = counted.most_common(1)[0][0] if counted else "F32"
    return common if common in MIXES else next(name for name, mix in MIXES.items() if mix.format == common)
