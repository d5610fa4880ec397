"""Models by name, loaded for serving."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tahr.config import EngineConfig, SamplingParams
from tahr.errors import ConfigError
from tahr.server.models import ServedModel

if TYPE_CHECKING:
    from tahr.engine.step_log import StepLog


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model to serve: where it comes from, what it is called (None: as it calls itself), how it is to run."""

    source: str
    name: str | None = None
    quantization: str | None = None
    other_names: tuple[str, ...] = ()
    config: EngineConfig = field(default_factory=EngineConfig)
    sampling: SamplingParams = field(default_factory=SamplingParams)  # where a request says nothing

    def names(self, own: str) -> tuple[str, ...]:
        """All names it answers to, the one it is reported by first."""
        return tuple(dict.fromkeys((*self.other_names, self.name or own)))


def check_names(choices: Sequence[ModelChoice]) -> None:
    """Refuse two models of one name before anything is loaded."""
    names = [name for choice in choices for name in choice.names(choice.source)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"Two models are called {twice[0]}: name one of them with --model NAME=MODEL.")


def load_models(
    choices: Sequence[ModelChoice], progress: Any = None, logs: "Sequence[StepLog]" = (), stream_interval_s: float = 0.0
) -> list[ServedModel]:
    """All of them, one after the other, in the order they were named.

    `logs` get every step; `stream_interval_s` is an `AsyncLLM`'s.
    """
    from tahr.engine.step_log import Watch
    from tahr.library.async_llm import AsyncLLM
    from tahr.server.llm_engine import LlmEngine

    made = []
    for choice in choices:
        llm = AsyncLLM(
            choice.source,
            config=choice.config,
            quantization=choice.quantization,
            progress=progress,
            stream_interval_s=stream_interval_s,
        )
        engine = LlmEngine(llm)
        names = choice.names(engine.name)
        if logs:
            llm.llm.engine.watch = Watch(names[0], logs)
        made.append(ServedModel(names, engine, defaults=choice.sampling))
    return made
