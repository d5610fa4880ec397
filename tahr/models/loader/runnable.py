"""Whether a model could run, from the little that is known before its weights are fetched."""

from collections.abc import Mapping
from typing import Any, Protocol

from tahr.models.drafters.reading import drafter_kind, read_drafter
from tahr.models.loader.registry import family_of_gguf, from_hf, unknown


class Known(Protocol):
    """Evidence about a model: the config.json of a checkpoint, or the architecture of a GGUF."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any] | None: ...
    @property
    def architecture(self) -> str | None: ...


def refuse_unsupported_draft(known: Known) -> None:
    """Refuse what cannot guess for another model: it is a drafter, or a smaller model."""
    if known.config is not None and drafter_kind(known.config):
        read_drafter(known.config)
    else:
        refuse_unsupported(known)


def refuse_unsupported(known: Known) -> None:
    """Raise what loading the model would raise, as far as can be told."""
    if known.config is not None:
        from_hf(known.config, known.name)
    elif known.architecture is not None and family_of_gguf(known.architecture) is None:
        raise unknown(known.architecture, "the GGUF metadata")
