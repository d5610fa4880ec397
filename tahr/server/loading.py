"""Models by name, loaded for serving."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.server.front import Served


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model to serve: where it comes from, what it is called (None: as it calls itself), and other names for it."""

    source: str
    name: str | None = None
    quantization: str | None = None
    other_names: tuple[str, ...] = ()

    def names(self, own: str) -> tuple[str, ...]:
        """All names it answers to, the one it is reported by first."""
        return tuple(dict.fromkeys((*self.other_names, self.name or own)))


def parse_choice(text: str, quantization: str | None = None) -> ModelChoice:
    """`MODEL` or `NAME=MODEL`."""
    name, equals, source = text.partition("=")
    if not equals or "/" in name or "==" in text[: len(name) + 2]:  # an = inside a path or a pin names nothing
        return ModelChoice(text, None, quantization)
    if not name or not source:
        raise ConfigError(f"--model {text} is half empty: write --model NAME=MODEL.")
    return ModelChoice(source, name, quantization)


def check_names(choices: Sequence[ModelChoice]) -> None:
    """Refuse two models of one name before anything is loaded."""
    names = [name for choice in choices for name in choice.names(choice.source)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"Two models are called {twice[0]}: name one of them with --model NAME=MODEL.")


def load_models(choices: Sequence[ModelChoice], config: EngineConfig, progress: Any = None) -> list[Served]:
    """All of them, one after the other, in the order they were named."""
    from tahr.engine.async_llm import AsyncLLM
    from tahr.server.llm_engine import LlmEngine

    made = []
    for choice in choices:
        llm = AsyncLLM(choice.source, config=config, quantization=choice.quantization, progress=progress)
        engine = LlmEngine(llm)
        made.append(Served(choice.names(engine.name), engine))
    return made
