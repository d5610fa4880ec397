"""Small files that came beside a GGUF: what its repository or its registry says of tokens, templates and sampling."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tahr import regular_file
from tahr.config import SamplingParams
from tahr.errors import ConfigError, CorruptFile
from tahr.hub import ModelFiles
from tahr.hub.ollama_template import Untranslatable, to_jinja
from tahr.models.config.record import ModelConfig
from tahr.models.loader.load import OpenedModel, read_object

TOKENIZER = "tokenizer.json"
TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
GENERATION = "generation_config.json"
OLLAMA_PARAMS = "params.json"
OLLAMA_TEMPLATE = "template.txt"
OLLAMA_SYSTEM = "system.txt"
MAX_TEXT_BYTES = 1 << 20
# Ollama's names of sampling settings, and ours. Others of its params (num_ctx, num_gpu, ...) are about its own engine.
OLLAMA_NAMES = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "seed", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta")},
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
}


def sidecar(files: ModelFiles, *names: str) -> Path | None:
    """The first of these files that came with the model."""
    found = {path.name: path for path in files.sidecars}
    return next((found[name] for name in names if name in found), None)


def recommended_sampling(files: ModelFiles, source: OpenedModel, config: ModelConfig) -> SamplingParams:
    """How the model's makers want it sampled, files beside the weights included."""
    path = sidecar(files, GENERATION)
    if path is not None and not source.generation:
        source = replace(source, generation=read_object(path, needed=False))
    own = source.sampling(config)
    params = sidecar(files, OLLAMA_PARAMS)
    return ollama_sampling(read_object(params, needed=False)).over(own) if params else own


def ollama_template(files: ModelFiles) -> tuple[str | None, str]:
    """The template of an Ollama model as Jinja, and a line for the log where it cannot be had."""
    path = sidecar(files, OLLAMA_TEMPLATE)
    if path is None:
        return None, ""
    try:
        return to_jinja(read_text(path), read_text(sidecar(files, OLLAMA_SYSTEM))), ""
    except Untranslatable as what:
        return None, f"The template of the Ollama registry is not used, because of {what}: the GGUF's own is."


def read_text(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return regular_file.read_text(path, MAX_TEXT_BYTES, errors="replace")
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read ({error.strerror}); fetch the model again.") from error


def ollama_sampling(params: Mapping[str, Any]) -> SamplingParams:
    """The sampling settings of an Ollama model."""
    values = {OLLAMA_NAMES[name]: value for name, value in params.items() if name in OLLAMA_NAMES and value is not None}
    if values.get("max_tokens") == -2:  # -2 stands for "until the context is full"
        values["max_tokens"] = -1
    if isinstance(values.get("stop"), list):
        values["stop"] = tuple(values["stop"])
    try:
        return SamplingParams.of(values)
    except (ConfigError, TypeError) as error:
        raise CorruptFile(f"The params of the Ollama model are wrong: {error} Choose another tag.") from error
