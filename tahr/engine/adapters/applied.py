"""The adapters of an `InferenceEngine`: a stack of what is wanted, and what its weights are changed by at present."""

from dataclasses import dataclass
from math import nan
from pathlib import Path

from tahr.config import LORA_SCALE
from tahr.engine.adapters.registry import Adapters
from tahr.engine.sequences.adapter_stack import NO_STACK
from tahr.errors import AdapterError, ConfigError
from tahr.executor.protocol import PreparedAdapter

LoraPath = str | Path  # a folder as PEFT saves it, or a GGUF file


@dataclass(frozen=True, slots=True, eq=False)
class ReadLora:
    """An adapter that was read and checked for one engine."""

    prepared: PreparedAdapter
    engine: Adapters

    def of(self, engine: Adapters) -> PreparedAdapter:
        if self.engine is not engine:
            raise AdapterError(f"The adapter {self.prepared.path} was read for another engine: load it with this one.")
        return self.prepared


Lora = LoraPath | ReadLora


class LoraStack:
    """Adapters with their scales, the last pushed last. Nothing changes before they are applied."""

    def __init__(self) -> None:
        self.wanted: list[tuple[Lora, float]] = []

    def push(self, lora: Lora, scale: float) -> None:
        if not isinstance(lora, str | Path | ReadLora):
            raise ConfigError(f"push_lora is given {lora!r:.80}, but it needs what load_lora returned, or a path.")
        if not isinstance(lora, ReadLora) and not Path(lora).exists():
            raise AdapterError(f"There is no adapter at {lora}: give a folder as PEFT saves it, or a GGUF file.")
        try:
            factor = float(scale)
        except (TypeError, ValueError):
            factor = nan
        if not LORA_SCALE.holds(factor):
            raise ConfigError(f"push_lora is given the scale {scale!r:.80}, but it must be {LORA_SCALE}.")
        self.wanted.append((lora, factor))

    def apply(self, adapters: Adapters) -> bool:
        """Change the weights of an engine by the sum of the stack; whether they are others than before."""
        before = adapters.default
        paths = {str(lora) for lora, _ in self.wanted if not isinstance(lora, ReadLora)}
        read = {path: adapters.prepare(path) for path in paths}  # all are checked before anything changes
        prepared = [lora.of(adapters) if isinstance(lora, ReadLora) else read[str(lora)] for lora, _ in self.wanted]
        names = [f"applied-{each.digest}" for each in prepared]
        there = {each.name for each in adapters.loaded()}
        for name, ready in zip(names, prepared, strict=True):
            if name not in there:
                adapters.add(name, ready)
                there.add(name)
        scales = [scale for _, scale in self.wanted]
        stack = adapters.stack(list(zip(names, scales, strict=True))) if self.wanted else NO_STACK
        adapters.apply(stack)
        for each in adapters.loaded():
            if each not in stack.adapters:
                adapters.remove(each.name)
        return stack.digest != before.digest
