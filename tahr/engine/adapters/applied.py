"""The adapters of an `InferenceEngine`: a stack of what is wanted, and what its weights are changed by at present."""

from math import nan
from pathlib import Path

from tahr.config import LORA_SCALE
from tahr.engine.adapters.registry import Adapters
from tahr.engine.sequences.adapter_stack import NO_STACK
from tahr.errors import ConfigError

LoraPath = str | Path  # a folder as PEFT saves it, or a GGUF file


class LoraStack:
    """Adapters with their scales, the last pushed last. Nothing changes before they are applied."""

    def __init__(self) -> None:
        self.wanted: list[tuple[LoraPath, float]] = []

    def push(self, lora: LoraPath, scale: float) -> None:
        if not isinstance(lora, str | Path):
            raise ConfigError(f"push_lora is given {lora!r:.80}, but it needs the path of an adapter.")
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
        paths = list(dict.fromkeys(str(path) for path, _ in self.wanted))
        prepared = {path: adapters.prepare(path) for path in paths}  # all are checked before anything changes
        names = {path: f"applied-{prepared[path].digest}" for path in paths}
        there = {each.name for each in adapters.loaded()}
        for path, name in names.items():
            if name not in there:
                adapters.add(name, prepared[path])
                there.add(name)
        stack = adapters.stack([(names[str(path)], scale) for path, scale in self.wanted]) if self.wanted else NO_STACK
        adapters.apply(stack)
        for each in adapters.loaded():
            if each not in stack.adapters:
                adapters.remove(each.name)
        return stack.digest != before.digest
