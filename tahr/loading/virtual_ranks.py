"""Options that do not go with virtual ranks."""

from tahr.backends.api import Backend
from tahr.config import EngineConfig
from tahr.errors import ConfigError

# Backends whose steps may be recorded from several threads, one at a time.
BACKENDS = ("cpu", "reference")
OPTIONS = ("quantize", "ram_budget")


def refuse_beside_ranks(config: EngineConfig, backend: Backend) -> None:
    """Refuse, before anything is read, what a model over several ranks does not have."""
    if config.virtual_ranks == 1:
        return
    if backend.name not in BACKENDS:
        raise ConfigError(
            f"virtual_ranks is there to check results, and not on the {backend.name} backend: leave it out, or take "
            "the cpu backend."
        )
    for name in OPTIONS:
        if getattr(config, name) is not None:
            raise ConfigError(
                f"{name} is set beside virtual_ranks, whose parts of matrices it does not know: leave one of them out."
            )


def refuse_drafter_beside_ranks(config: EngineConfig) -> None:
    """A trained drafter reads the layers of one decoder; those of several ranks are several."""
    if config.virtual_ranks > 1:
        raise ConfigError(
            "spec_draft names a drafter that was trained for the model, which virtual_ranks do not have: leave one of "
            "them out, or take a smaller model of the same vocabulary."
        )
