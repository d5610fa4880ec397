"""A model's files for the verbs that look at a model without running it."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tahr.cli.terminal.console import note
from tahr.config import sampling_names
from tahr.errors import TahrError

if TYPE_CHECKING:
    from tahr.hub import ModelFiles
    from tahr.text.tokens.tokenizer import Tokenizer


def find(model: str) -> "ModelFiles":
    """Where the model's files are; fetched first if they are not here."""
    from tahr.hub import Preview, resolve
    from tahr.hub.progress import Progress, human_bytes
    from tahr.loading.unfit import unfit_for
    from tahr.models.loader.runnable import refuse_unsupported

    def check(seen: Preview) -> None:
        refuse_unsupported(seen)
        size = f" of {human_bytes(seen.size_bytes)}" if seen.size_bytes is not None else ""
        note(f"{seen.name} is not on this machine: fetching its weights{size} (`tahr doctor` needs none).")

    return resolve(model, progress=Progress(sys.stderr), check=check, unfit=unfit_for())


def model_values(model: str, quantization: str | None, warn: Callable[[str], None]) -> dict[str, Any]:
    """The sampling settings the model's own files and family recommend, by path; nothing is fetched for them."""
    from tahr.hub import resolve
    from tahr.loading.sidecars import recommended_sampling
    from tahr.models.loader import open_model

    try:
        files = resolve(model, quant=quantization, download=False)
        source = open_model(files.weights, files.directory)
        recommended = recommended_sampling(files, source, source.model_config())
    except TahrError as error:
        warn(f"note: The model's own sampling values are not shown. {error}")
        return {}
    return {f"sampling.{name}": getattr(recommended, name) for name in sampling_names() if recommended.asks_for(name)}


def open_tokenizer(model: str) -> "Tokenizer":
    """The model's tokenizer; its weights stay on the disk."""
    from tahr.hub import tokenizer_directory
    from tahr.hub.progress import Progress
    from tahr.loading import builder
    from tahr.models.loader import open_model
    from tahr.text.tokens.tokenizer import Tokenizer

    if directory := tokenizer_directory(model, Progress(sys.stderr)):
        return Tokenizer.from_dir(directory)
    files = find(model)
    return builder.open_tokenizer(files, open_model(files.weights, files.directory))
