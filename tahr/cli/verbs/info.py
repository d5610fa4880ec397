"""`tahr info`: what a model is, read from its headers alone. Nothing is fetched."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tahr.cli.terminal.console import note
from tahr.errors import LoadError, ModelNotFound, TokenizerError, printable
from tahr.hub.progress import human_bytes

if TYPE_CHECKING:
    from tahr.hub import ModelFiles
    from tahr.models.loader import OpenedModel

HELP = "show what a model is made of, without loading it"

EXAMPLES = """\
examples:
  tahr info smollm2:135m
  tahr info model.gguf --tensors     name, shape, format and size of every tensor
  tahr info model.gguf --json        the same facts for programs"""

MOST_ITEMS = 64  # limit on a metadata array: a vocabulary is told by its length
MOST_SHOWN = 70  # characters of a metadata value
PROBE_SHAPE = (32, 256)  # holds whole blocks of every format


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, and how much of it."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="alias, repository, .gguf file or directory")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--metadata", action="store_true", help="list the metadata of the file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from tahr import hub
    from tahr.cli.verbs.doctor import describe_model
    from tahr.models.loader import open_model

    try:
        files = hub.resolve(args.model, download=False)
    except ModelNotFound as error:
        if hub.parse(args.model).kind == "path" or args.json or args.tensors or args.metadata:
            raise
        print(describe_model(args.model))
        note(f"{error} Then this shows what is in it.")
        return 0
    source = open_model(files.weights, files.directory)
    facts = describe(files, source)
    if args.tensors:
        facts["tensor_list"] = tensor_list(source)
    if args.metadata:
        facts["metadata"] = {name: plain(value) for name, value in source.config.items()}
    # Names and values of the file go to a terminal: what it would obey is shown as escapes.
    print(json.dumps(facts, indent=1) if args.json else printable(as_text(facts)))
    return 0


def describe(files: "ModelFiles", source: "OpenedModel") -> dict[str, Any]:
    """Everything worth knowing, as plain values."""
    return {
        "name": files.name,
        "files": [str(path) for path in files.weights],
        "size_bytes": source.n_bytes,
        **model_facts(source),
        "parameters": sum(tensor.n_values for tensor in source.tensors.values()),
        "tensors": len(source.tensors),
        "formats": formats(source),
        "kernels": kernels_here(source),
        **text_facts(files, source),
    }


def model_facts(source: "OpenedModel") -> dict[str, Any]:
    """The shape of the model; a model Tahr cannot run says why and still shows the rest."""
    try:
        config = source.model_config()
    except LoadError as error:
        said = source.config.get("general.architecture") or source.config.get("model_type")
        return {"family": said, "runs": False, "why_not": str(error)}
    experts = {"experts": f"{config.moe.n_active} of {config.moe.n_experts}"} if config.moe else {}
    return {
        "family": config.family,
        "runs": True,
        "layers": config.n_layers,
        "width": config.width,
        "heads": config.n_heads,
        "kv_heads": config.n_kv_heads,
        **experts,
        "context": config.max_context,
        "vocabulary": config.n_vocab,
    }


def formats(source: "OpenedModel") -> dict[str, dict[str, int]]:
    """How many tensors and bytes each number format has, the largest first."""
    found: dict[str, dict[str, int]] = {}
    for tensor in source.tensors.values():
        entry = found.setdefault(tensor.format.name, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += tensor.n_bytes
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))


def kernels_here(source: "OpenedModel") -> dict[str, str]:
    """Kernels of this machine for each format of matrix: the backend is tried with a matrix of zeros."""
    import numpy as np

    from tahr.backends import open_backend
    from tahr.weights import HostTensor

    backend = open_backend()
    n_rows, n_cols = PROBE_SHAPE
    found = {}
    for form in {
        tensor.format.name: tensor.format for tensor in source.tensors.values() if len(tensor.shape) > 1
    }.values():
        zeros = np.zeros(n_rows * n_cols // form.block * form.block_bytes, np.uint8)
        found[form.name] = backend.weight(HostTensor("probe", form, PROBE_SHAPE, zeros)).kernel
    return found


def text_facts(files: "ModelFiles", source: "OpenedModel") -> dict[str, Any]:
    """The tokenizer, and whether the model can chat."""
    from tahr.loading.builder import open_template, open_tokenizer

    if source.format == "gguf":
        said = [source.config.get(f"tokenizer.ggml.{key}") for key in ("model", "pre")]
        kind = " ".join(word for word in said if isinstance(word, str))
    else:
        kind = "tokenizer.json"
    try:
        tokenizer = open_tokenizer(files, source)
    except TokenizerError as error:
        return {"tokenizer": f"{kind}: {error}", "chat_template": None}
    return {
        "tokenizer": f"{kind}, {tokenizer.n_vocab} tokens",
        "chat_template": open_template(files, source, tokenizer) is not None,
    }


def tensor_list(source: "OpenedModel") -> list[dict[str, Any]]:
    return [
        {"name": tensor.name, "shape": list(tensor.shape), "format": tensor.format.name, "bytes": tensor.n_bytes}
        for tensor in source.tensors.values()
    ]


def plain(value: Any) -> Any:
    """Metadata as JSON can write it; a vocabulary is shown by its length."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{len(value)} items]" if len(value) > MOST_ITEMS else [plain(item) for item in value]
    return value


def as_text(facts: dict[str, Any]) -> str:
    """One fact a line, the long lists below."""
    short = {name: value for name, value in facts.items() if name not in ("tensor_list", "metadata")}
    lines = [
        f"{name.removesuffix('_bytes').replace('_', ' '):<14} {SHOWN.get(name, shown)(value)}"
        for name, value in short.items()
    ]
    lines += [tensor_line(tensor) for tensor in facts.get("tensor_list", ())]
    lines += [metadata_line(name, value) for name, value in facts.get("metadata", {}).items()]
    return "\n".join(lines)


def tensor_line(tensor: dict[str, Any]) -> str:
    shape = " x ".join(map(str, tensor["shape"]))
    return f"  {tensor['name']:<40} {tensor['format']:<8} {human_bytes(tensor['bytes']):>9}  {shape}"


def metadata_line(name: str, value: Any) -> str:
    text = str(value).replace("\n", "\\n")
    return f"  {name:<40} {text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + '...'}"


def shown(value: Any) -> str:
    words: dict[Any, str] = {True: "yes", False: "no", None: "not said"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def shown_formats(formats: dict[str, dict[str, int]]) -> str:
    return ", ".join(f"{name} x {f['tensors']} ({human_bytes(f['bytes'])})" for name, f in formats.items())


def shown_kernels(kernels: dict[str, str]) -> str:
    return ", ".join(f"{name}: {kernel}" for name, kernel in kernels.items())


SHOWN: dict[str, Callable[[Any], str]] = {
    "files": ", ".join,
    "size_bytes": human_bytes,
    "parameters": "{:,}".format,
    "formats": shown_formats,
    "kernels": shown_kernels,
}
