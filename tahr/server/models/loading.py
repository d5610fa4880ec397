"""Models by name, as a server loads them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tahr.config import EngineConfig, SamplingParams
from tahr.errors import ConfigError
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ServedModel

if TYPE_CHECKING:
    from tahr.engine.step_log import StepLog
    from tahr.loading.model_facts import ModelFacts

KV_SHARE = 4  # a model takes at most this part of the budget for keys and values, unless its settings say how much


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model to serve: where it comes from, what it is called (None: as it calls itself), how it is to run."""

    source: str
    name: str | None = None
    quantization: str | None = None
    other_names: tuple[str, ...] = ()
    config: EngineConfig = field(default_factory=EngineConfig)
    sampling: SamplingParams = field(default_factory=SamplingParams)  # defaults of its requests

    def names(self, own: str) -> tuple[str, ...]:
        """All names it answers to, the one it is reported by first."""
        return tuple(dict.fromkeys((*self.other_names, self.name or own)))


def check_names(choices: Sequence[ModelChoice]) -> None:
    """Refuse two models of one name before anything is loaded."""
    names = [name for choice in choices for name in choice.names(choice.source)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"Two models are called {twice[0]}: name one of them with --model NAME=MODEL.")


def check_text(name: str) -> None:
    """Names come from command lines and files, which may hold any bytes; replies, logs and metrics cannot."""
    if not name.strip():
        raise ConfigError("A name of a model is empty: give it another, such as --model NAME=MODEL.")
    try:
        name.encode()
    except UnicodeEncodeError:
        message = f"The name {name!a} of a model is not UTF-8: give it another, such as --model NAME=MODEL."
        raise ConfigError(message) from None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options common to the loading of all models."""

    progress: Any = None
    logs: "Sequence[StepLog]" = ()  # get every step
    stream_interval_s: float = 0.0  # interval of each `AsyncLLM`
    budget_bytes: int | None = None  # limit on the memory of all models


@dataclass(frozen=True, slots=True)
class LlmLoader:
    """Loads the model of a choice, as often as it is needed."""

    choice: ModelChoice
    options: LoadOptions

    @property
    def source(self) -> str:
        return self.choice.source

    @property
    def config(self) -> EngineConfig:
        """With a bound of keys and values, where memory is bounded."""
        from tahr.loading.budgets import within_budget

        config = within_budget(self.choice.config)
        budget = self.options.budget_bytes
        if self.choice.config.kv_bytes or not budget:
            return config
        most = max(1, budget // KV_SHARE)
        return replace(config, kv_bytes=min(config.kv_bytes or most, most))

    def n_bytes(self) -> int:
        """The memory of its weights, at most the size of its files, and the most that keys and values may take; files
        are fetched if they are not here."""
        from tahr.loading.budgets import held_weight_bytes
        from tahr.loading.builder import weight_file_bytes

        choice = self.choice
        config = self.config
        files_bytes = weight_file_bytes(choice.source, config, choice.quantization, self.options.progress)
        kv_bytes = config.kv_bytes or 0
        return held_weight_bytes(config, files_bytes, kv_bytes) + kv_bytes

    def load(self) -> ServedEngine:
        """The engine of the model."""
        from tahr.engine.step_log import Watch
        from tahr.library.async_llm import AsyncLLM
        from tahr.server.models.llm_engine import LlmEngine

        choice = self.choice
        options = self.options
        llm = AsyncLLM(
            choice.source,
            config=self.config,
            quantization=choice.quantization,
            progress=options.progress,
            stream_interval_s=options.stream_interval_s,
        )
        if options.logs:
            llm.llm.engine.watch = Watch(choice.names(llm.llm.name)[0], options.logs)
        return LlmEngine(llm)

    def facts(self) -> "ModelFacts":
        """Facts from the files of the model."""
        from tahr.loading.model_facts import model_facts

        return model_facts(self.choice.source, self.choice.quantization)


def served_models(choices: Sequence[ModelChoice], options: LoadOptions | None = None) -> list[ServedModel]:
    """All of them, in the order they were named; none is loaded yet."""
    return [served_model(choice, options or LoadOptions()) for choice in choices]


def served_model(choice: ModelChoice, options: LoadOptions) -> ServedModel:
    from tahr import hub

    own = hub.parse(choice.source, quant=choice.quantization).name
    names = choice.names(own)
    for name in names:
        check_text(name)
    return ServedModel(names, sampling=choice.sampling, loader=LlmLoader(choice, options))
