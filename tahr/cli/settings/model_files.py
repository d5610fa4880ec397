"""A model's files for the verbs that look at a model without running it."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tahr.hub import ModelFiles
    from tahr.text.tokenizer import Tokenizer


def find(model: str) -> "ModelFiles":
    """Where the model's files are; fetched first if they are not here."""
    from tahr.hub import resolve
    from tahr.hub.progress import Progress
    from tahr.models.runnable import refuse_unsupported

    return resolve(model, progress=Progress(sys.stderr), check=refuse_unsupported)


def open_tokenizer(model: str) -> "Tokenizer":
    """The model's tokenizer; its weights stay on the disk."""
    from tahr.engine import builder
    from tahr.models import open_model

    files = find(model)
    return builder.open_tokenizer(files, open_model(files.weights, files.directory))
