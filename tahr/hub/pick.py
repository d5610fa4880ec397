"""Which files of a listing make up the model: one rule for a remote repository, the cache and a local directory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tahr.errors import CorruptFile, LoadError, ModelNotFound
from tahr.hub.files import Format, ModelFiles
from tahr.hub.refs import Ref, quant_of
from tahr.regular_file import read_bytes

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20

# Everything besides weights that a model may need. Weights in other formats (.bin, .pt) are pickles, which can run
# code when opened, so they are never even downloaded.
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    "quantize_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)

# Files that sentence-transformers saves beside an embedding model: pooling, prompts, and small layers after it.
SENTENCE_FILES = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    *(f"{i}_Dense/{name}" for i in (2, 3) for name in ("config.json", "model.safetensors")),
)

# The codec of a model that speaks, with its weights.
SPEECH_FILES = (
    *(f"speech_tokenizer/{name}" for name in ("config.json", "preprocessor_config.json", "model.safetensors")),
)

# Without a word from the user: the usual compromise first, then its neighbours, then larger, then smaller.
PREFERRED_QUANTS = (
    *("Q4_K_M", "Q4_K_S", "UD-Q4_K_XL", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_1", "MXFP4", "MXFP4_MOE"),
    *("Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0"),
    *("Q3_K_L", "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_XS", "Q2_K", "TQ2_0", "TQ1_0"),
)
FLOAT_MASTERS = ("F32", "F16", "BF16")  # large originals, used only when asked for by name

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class Gguf:
    """One model in GGUF form: a single file, or all the parts of a split one."""

    files: tuple[str, ...]
    quant: str | None
    missing: tuple[str, ...] = ()

    def answers_to(self, file_name: str) -> bool:
        """Whether the user may mean this model by that file name: with or without folder, whole or any part."""
        whole = _SPLIT.sub(r"\g<stem>.gguf", self.files[0])
        names = [form.lower() for name in (*self.files, whole) for form in (name, PurePosixPath(name).name)]
        return file_name.lower() in names


def gguf_models(names: Iterable[str]) -> list[Gguf]:
    """Group a listing into language models; projectors and importance matrices are not any."""
    listing = set(names)
    found: dict[tuple[str, ...], Gguf] = {}
    for name in sorted(listing):
        base = PurePosixPath(name).name.lower()
        if base.endswith(".gguf") and "mmproj" not in base and "imatrix" not in base:
            files = split_set(name)
            missing = tuple(part for part in files if part not in listing)
            found[files] = Gguf(files, quant_of(name), missing)
    return list(found.values())


# Towers for images are small: the first of these that is there.
PREFERRED_TOWERS = ("F16", "BF16", "Q8_0", "F32")


# Repositories of models whose towers Tahr runs: others' would be fetched in vain.
SEEING = re.compile(r"qwen-?(2|2\.5|3)-?vl|qwen-?3\.5|gemma-?3-(4|12|27)b", re.IGNORECASE)


def projector_among(names: Iterable[str]) -> str | None:
    """The file of a tower for images, where several differ in their format alone; None where there is none."""
    found = sorted(name for name in names if is_projector(name))
    for quant in PREFERRED_TOWERS:
        if match := next((name for name in found if quant_of(name) == quant), None):
            return match
    return found[0] if found else None


def tower_to_fetch(names: Iterable[str], weights: str, repo: str) -> tuple[str, ...]:
    """The tower that is fetched with a GGUF: of models that read images with one, the file in the same folder."""
    if not SEEING.search(repo):
        return ()
    folder = PurePosixPath(weights).parent
    name = projector_among(name for name in names if PurePosixPath(name).parent == folder)
    return (name,) if name else ()


def is_projector(name: str) -> bool:
    base = PurePosixPath(name).name.lower()
    return base.endswith(".gguf") and "mmproj" in base


def split_set(name: str) -> tuple[str, ...]:
    """All parts of the set a file belongs to, in order; the file alone when it is whole."""
    match = _SPLIT.fullmatch(name)
    total = int(match["total"]) if match else 0
    if not match or not total:
        return (name,)
    return tuple(f"{match['stem']}-{part:05}-of-{total:05}.gguf" for part in range(1, total + 1))


def choose_gguf(names: Iterable[str], selector: str | None, where: str, joint: str = ":") -> Gguf:
    """The one GGUF model the selector means; a listing that leaves a doubt is refused with the choices.

    `joint` stands between the place and a file in it where a user names one.
    """
    models = gguf_models(names)
    matches = _matching(models, selector)
    if len(matches) == 1:
        return matches[0]
    choices = ", ".join(model.files[0] for model in models) or "none at all"
    if matches:
        raise ModelNotFound(
            f"{where} holds several models that fit: {choices}. Name the file: {where}{joint}FILE.gguf."
        )
    wanted = f"no GGUF file for `{selector}`" if selector else "no quantised GGUF file"
    raise ModelNotFound(f"{where} has {wanted}; it has {choices}.")


def _matching(models: list[Gguf], selector: str | None) -> list[Gguf]:
    if selector and selector.lower().endswith(".gguf"):
        return [model for model in models if model.answers_to(selector)]
    if selector:
        exact = [model for model in models if model.quant == selector]
        return exact or [model for model in models if model.quant == f"UD-{selector}"]
    for quant in PREFERRED_QUANTS:
        if matches := [model for model in models if model.quant == quant]:
            return matches
    return [model for model in models if model.quant not in FLOAT_MASTERS]


def choose_format(names: Iterable[str], ref: Ref) -> Format:
    """GGUF when the reference says so or nothing else is there; safetensors otherwise."""
    listing = set(names)
    has_gguf = bool(gguf_models(listing))
    has_safetensors = any(name.endswith(".safetensors") and "/" not in name for name in listing)
    if ref.selector or (has_gguf and (not has_safetensors or ref.repo.lower().endswith("-gguf"))):
        return "gguf"
    if has_safetensors:
        return "safetensors"
    raise ModelNotFound(
        f"{ref.name} holds no GGUF or safetensors weights, which are the formats Tahr loads:"
        " name another repository or directory, or convert the model first."
    )


def safetensors_names(names: Iterable[str], directory: Path) -> tuple[str, ...]:
    """The weight files a listing promises: the whole file, those the index in `directory` names, or the single file."""
    index = directory / INDEX
    single = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    if "model.safetensors" in single:
        return ("model.safetensors",)  # the choice of the loader and of transformers, whatever an index says
    if index.is_file():
        return indexed_names(index)
    if len(single) == 1:
        return (single[0],)
    raise CorruptFile(
        f"There are several safetensors files ({', '.join(single)}) and no {INDEX} to say which of them are the"
        " model: put the ones you want into a directory of their own and name that."
    )


def indexed_names(index: Path) -> tuple[str, ...]:
    """The shards that an index lists, all of them files beside it."""
    try:
        names = set(json.loads(read_bytes(index, MAX_INDEX_BYTES))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"{index} is not a safetensors index ({error!r}): fetch the model again.") from error
    for name in names:
        # A name with a folder in it could point anywhere on the disk.
        if (
            not isinstance(name, str)
            or PurePosixPath(name).name != name
            or "\\" in name
            or not name.isprintable()
            or not name.endswith(".safetensors")
        ):
            raise CorruptFile(f"{index} names {name!r}, which is no safetensors file beside it: do not use this model.")
    return tuple(sorted(names))


def open_directory(ref: Ref, directory: Path, names: Iterable[str]) -> ModelFiles:
    """The model a directory holds, or the reason why it holds none."""
    listing = list(names)
    if choose_format(listing, ref) == "gguf":
        return _open_gguf(ref, directory, listing)
    if "adapter_config.json" in listing and "config.json" not in listing:
        raise ModelNotFound(f"{ref.name} is an adapter and no model: name its base model, and {directory} by --lora.")
    weights = tuple(directory / name for name in safetensors_names(listing, directory))
    required = (directory / "config.json", *weights)
    if missing := [path.name for path in required if not path.is_file()]:
        raise CorruptFile(f"{ref.name} in {directory} lacks {', '.join(missing)}: fetch the model again.")
    return ModelFiles(ref, ref.name, "safetensors", weights, directory=directory)


def _open_gguf(ref: Ref, directory: Path, names: list[str]) -> ModelFiles:
    model = _chosen_here(directory, names) if ref.path else choose_gguf(names, ref.selector, ref.repo or ref.name)
    if model.missing:
        raise CorruptFile(f"{ref.name} lacks the parts {', '.join(model.missing)}: fetch the model again.")
    sidecars = tuple(directory / name for name in SMALL_FILES if name in names)
    return ModelFiles(ref, ref.name, "gguf", tuple(directory / name for name in model.files), sidecars=sidecars)


def _chosen_here(directory: Path, names: list[str]) -> Gguf:
    """Choose in a user's own directory; its only model is meant even if it is a float one, which is here already."""
    models = gguf_models(names)
    return models[0] if len(models) == 1 else choose_gguf(names, None, str(directory), "/")


def try_open(ref: Ref, directory: Path, names: Iterable[str]) -> ModelFiles | None:
    """Open like `open_directory`, for places where an incomplete model only means looking further."""
    try:
        return open_directory(ref, directory, names)
    except LoadError:
        return None
