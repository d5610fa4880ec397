"""The files of sentence-transformers beside a checkpoint: how its states become vectors, and what prompts it knows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import MOST_WIDTH
from tahr.models.config.rope import MOST_CONTEXT
from tahr.models.files.json_files import read_json
from tahr.models.parts.encoding import Dense
from tahr.weights import HostTensor, open_safetensors

MOST_JSON_BYTES = 1 << 20
MOST_TOKENIZER_BYTES = 16 << 20
MOST_MODULES = 8
MOST_PROMPTS = 256
MOST_PROMPT_CHARS = 16384
PASSED_BY = ("Transformer", "Normalize")  # vectors are made 1 long unless a request says otherwise
# Poolings by the flag of 1_Pooling/config.json, and by the name that newer files have.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
POOLING_NAMES = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
ACTIVATIONS = {"Identity": "", "Tanh": "tanh"}
POOLED = "sentence_embedding"  # name that modules give to the vector of a text


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """Contents of those files. Dense layers come with their tensors, as dense.0.weight and so on."""

    pooling: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    dense: tuple[Dense, ...] = ()
    max_tokens: int | None = None
    activation: str = ""  # activation of a cross-encoder, in newer files
    tensors: Mapping[str, HostTensor] = field(default_factory=dict)
    n_bytes: int = 0


def read_sentence_files(directory: Path) -> SentenceFiles | None:
    """Read the files beside a checkpoint; None: it was not saved by sentence-transformers."""
    modules = read_json(directory / "modules.json", list, MOST_JSON_BYTES)
    if modules is None:
        return None
    found = SentenceFiles(max_tokens=max_tokens(directory), **settings(directory))
    for path, kind in checked_modules(modules):
        if kind == "Pooling":
            found = replace(found, pooling=pooling(Fields(read_needed(directory / path / "config.json"), "1_Pooling")))
        elif kind == "Dense":
            found = with_dense(found, directory / path)
        elif kind not in PASSED_BY:
            raise UnsupportedModel(
                f"modules.json has a module of type {kind!r}; Tahr knows Pooling, Dense, {', '.join(PASSED_BY)}."
            )
    return found


def checked_modules(modules: list[Any]) -> list[tuple[str, str]]:
    """(folder, type) of each module. The folder must be one beside the file: the names are a stranger's."""
    found = []
    for module in modules[: MOST_MODULES + 1]:
        f = Fields(module if isinstance(module, dict) else {}, "modules.json")
        path = f.text("path")
        kind = f.text("type").rpartition(".")[2]
        if path.startswith(".") or "/" in path.rstrip("/") or "\\" in path or "\0" in path or not kind:
            raise CorruptFile(
                f"modules.json names {path[:80]!r}, which is not a folder beside it: do not use this model."
            )
        found.append((path, kind))
    if len(found) > MOST_MODULES:
        raise UnsupportedModel(f"modules.json has more than {MOST_MODULES} modules; Tahr runs shorter chains.")
    return found


def pooling(f: Fields) -> str:
    named = f.get("pooling_mode")
    chosen = (
        [named]
        if isinstance(named, str)
        else [name for name in f.values if f.values[name] is True and name.startswith("pooling_mode")]
    )
    kind = (POOLING_FLAGS | POOLING_NAMES).get(chosen[0]) if len(chosen) == 1 else None
    if kind is None or not f.flag("include_prompt", True):
        raise UnsupportedModel(
            f"The model pools by {', '.join(map(str, chosen))[:200] or 'nothing'}; Tahr pools by one of "
            f"{', '.join(POOLING_NAMES)}, prompts included."
        )
    return kind


def with_dense(found: SentenceFiles, directory: Path) -> SentenceFiles:
    f = Fields(read_needed(directory / "config.json"), "a Dense config.json")
    i = len(found.dense)
    if not found.pooling or f.text("module_input_name", POOLED) != POOLED:
        raise UnsupportedModel("The model gives a vector for every token, as ColBERT does; Tahr runs those with one.")
    if f.flag("use_residual"):
        raise UnsupportedModel("A dense layer of the model adds what it reads to what it gives; Tahr has none such.")
    activation = f.text("activation_function", "Tanh").rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"A dense layer is followed by {activation!r}; Tahr knows {', '.join(ACTIVATIONS)}.")
    n_in = f.count("in_features", MOST_WIDTH)
    n_out = f.count("out_features", MOST_WIDTH)
    dense = Dense(n_in, n_out, f.flag("bias", True), ACTIVATIONS[activation])
    file = directory / "model.safetensors"
    if not file.is_file():
        raise CorruptFile(f"{file} is missing: the model's dense layer needs it. Fetch the model again.")
    opened = open_safetensors(file)
    named = {
        f"dense.{i}.{kind}": replace(opened.tensors[f"linear.{kind}"], name=f"{directory.name}/linear.{kind}")
        for kind in ("weight", "bias")
        if f"linear.{kind}" in opened.tensors
    }
    return replace(
        found, dense=(*found.dense, dense), tensors={**found.tensors, **named}, n_bytes=found.n_bytes + opened.n_bytes
    )


def max_tokens(directory: Path) -> int | None:
    """How many tokens of a text count; newer files leave it to the tokenizer to say."""
    where = "sentence_bert_config.json"
    f = Fields(read_json(directory / where, dict, MOST_JSON_BYTES) or {}, where)
    if f.get("max_seq_length") is not None:
        return f.count("max_seq_length", MOST_CONTEXT)
    named = (read_json(directory / "tokenizer_config.json", dict, MOST_TOKENIZER_BYTES) or {}).get("model_max_length")
    # 10^30 is how tokenizers without a limit write it.
    return named if type(named) is int and 0 < named <= MOST_CONTEXT else None


def settings(directory: Path) -> dict[str, Any]:
    """The prompts, the default's name and the activation, by the names of `SentenceFiles`."""
    where = "config_sentence_transformers.json"
    f = Fields(read_json(directory / where, dict, MOST_JSON_BYTES) or {}, where)
    found = f.part("prompts").values
    default = f.text("default_prompt_name")
    texts = [*found, *found.values()]
    if len(found) > MOST_PROMPTS or not all(isinstance(t, str) and len(t) <= MOST_PROMPT_CHARS for t in texts):
        raise CorruptFile(f"{where} has prompts that are no short texts; fetch the model again.")
    if default and default not in found:
        raise CorruptFile(f"{where} names {default[:80]!r} as the default prompt and has no such prompt.")
    return {"prompts": dict(found), "default_prompt": default, "activation": f.text("activation_fn")}


def read_needed(path: Path) -> dict[str, Any]:
    found: dict[str, Any] | None = read_json(path, dict, MOST_JSON_BYTES)
    if found is None:
        raise CorruptFile(f"{path} is missing: modules.json names it. Fetch the model again.")
    return found
