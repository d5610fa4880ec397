"""The adapters of an engine by name: loaded while it runs, removed when their last request has finished."""

import re
from collections.abc import Sequence as ListOf
from pathlib import Path

from tahr.backends.api import MAX_ADAPTERS, MAX_STACK
from tahr.config import LORA_SCALE, LoraChoice, clean_lora
from tahr.engine.sequences.adapter_stack import NO_STACK, AdapterStack, LoadedAdapter
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError
from tahr.executor.protocol import AdapterPort, PreparedAdapter

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


class Adapters:
    """All adapters of an engine. `prepare` may run on any thread; everything else happens between two steps."""

    def __init__(self, port: AdapterPort, model_name: str = "the model"):
        self.model_name = model_name
        self.default = NO_STACK  # stack of sequences that name none
        self.n_used = 0  # uses by sequences, each as often as it is used
        self._port = port
        self._by_name: dict[str, LoadedAdapter] = {}
        self._free = list(range(MAX_ADAPTERS, 0, -1))  # slots

    @property
    def note(self) -> str:
        """How linears add adapters, for the load log."""
        return self._port.note

    def warm_next(self) -> bool:
        """Run one more kind of step as if there were adapters, while nothing is in flight; False if none is left."""
        return self._port.warm_next()

    def prepare(self, path: str | Path) -> PreparedAdapter:
        """Read an adapter and check that it fits the model. Nothing changes yet."""
        return self._port.prepare(Path(path), self.model_name)

    def add(self, name: str, prepared: PreparedAdapter, scale: float = 1.0, replaces: bool = False) -> LoadedAdapter:
        """Let requests use an adapter by this name, maybe instead of another one."""
        check_name(name)
        if not LORA_SCALE.holds(scale):
            raise ConfigError(f"The scale of an adapter is {scale!r}, but it must be {LORA_SCALE}.")
        old = self._by_name.get(name)
        if old and not replaces:
            raise ConfigError(f"There is an adapter {name!r} already: remove it first, or choose another name.")
        if not self._free and (old is None or old.n_users):
            raise ConfigError(f"{MAX_ADAPTERS} adapters are loaded, which is the most: remove one first.")
        if old:
            self.remove(name)
        slot = self._free.pop()
        try:
            self._port.put(slot, prepared)
        except BaseException:
            self._free.append(slot)
            raise
        loaded = LoadedAdapter(
            name, prepared.path, prepared.digest, slot, scale, prepared.rank, prepared.n_bytes, prepared.base
        )
        self._by_name[name] = loaded
        return loaded

    def remove(self, name: str) -> LoadedAdapter:
        """Let no new request use it; those that do already finish first, then its memory is free."""
        loaded = self.find(name)
        if loaded in self.default.adapters:
            raise ConfigError(f"The adapter {name!r} is applied to all requests: unapply it first.")
        del self._by_name[name]
        loaded.is_removed = True
        self._free_if_unused(loaded)
        return loaded

    def find(self, name: str) -> LoadedAdapter:
        if name not in self._by_name:
            there = ", ".join(self._by_name) or "none"
            raise ConfigError(f"There is no adapter {name[:80]!r}: there is {there}.")
        return self._by_name[name]

    def loaded(self) -> list[LoadedAdapter]:
        """All that requests may name, in the order they came."""
        return list(self._by_name.values())

    def stack(self, lora: str | ListOf[LoraChoice]) -> AdapterStack:
        """The sum of some adapters, given as (name, scale); those of the engine if none are named."""
        if not lora:
            return self.default
        requested = clean_lora(lora)
        if len(requested) > MAX_STACK:
            raise ConfigError(f"{len(requested)} adapters are asked for at once; {MAX_STACK} are the most.")
        found = [(self.find(name), scale) for name, scale in requested]
        scaled = [(one, one.scale if scale is None else float(scale)) for one, scale in found]
        return self.stack_of([(one, scale) for one, scale in scaled if scale])

    def stack_of(self, scaled: ListOf[tuple[LoadedAdapter, float]]) -> AdapterStack:
        """The sum of some loaded adapters."""
        return AdapterStack(tuple(one for one, _ in scaled), tuple((one.slot, scale) for one, scale in scaled))

    def apply(self, stack: AdapterStack) -> None:
        """Let sequences that name no adapter use this stack."""
        self._count(stack, 1)
        before = self.default
        self.default = stack
        self._count(before, -1)

    # ---- users ------------------------------------------------------------------------------------------------

    def attach(self, seq: Sequence, stack: AdapterStack) -> None:
        """Let a sequence be computed with a stack, until it is detached."""
        seq.adapters.stack = stack
        seq.adapters.digest = stack.digest
        self.n_used += len(stack.adapters)
        self._count(stack, 1)

    def detach(self, seq: Sequence) -> None:
        """A sequence has ended."""
        stack = seq.adapters.stack
        seq.adapters.stack = NO_STACK
        self.n_used -= len(stack.adapters)
        self._count(stack, -1)

    def _count(self, stack: AdapterStack, n: int) -> None:
        for adapter in stack.adapters:
            adapter.n_users += n
            self._free_if_unused(adapter)

    def _free_if_unused(self, adapter: LoadedAdapter) -> None:
        if adapter.is_removed and not adapter.n_users:
            self._port.clear(adapter.slot)
            self._free.append(adapter.slot)


def check_name(name: str) -> None:
    """A name becomes a part of a model's name, so it is a plain word."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"An adapter cannot be called {name[:80]!r}: use up to 64 letters, digits, dots, dashes and underscores."
        )
