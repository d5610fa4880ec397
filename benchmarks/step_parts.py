"""How long the parts of an engine's steps take, on the host and on a GPU."""

import functools
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

Methods = Mapping[str, tuple[Any, str]]  # by the name of a part: a class and the name of its method


class Parts(ABC):
    """Times methods while they are watched."""

    @abstractmethod
    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted under a name."""

    @contextmanager
    def watching(self, methods: Methods) -> Iterator[None]:
        kept = {name: getattr(owner, method) for name, (owner, method) in methods.items()}
        for name, (owner, method) in methods.items():
            setattr(owner, method, self.timed(name, kept[name]))
        try:
            yield
        finally:
            for name, (owner, method) in methods.items():
                setattr(owner, method, kept[name])


class StepParts(Parts):
    """Seconds of the host by the name of a part, one number per step; what a part inside took is not its own."""

    def __init__(self) -> None:
        self._steps: list[dict[str, float]] = []
        self._now: dict[str, float] = {}
        self._inside = [0.0]  # by depth: what the parts inside took

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            began = perf_counter()
            self._inside.append(0.0)
            try:
                return function(*args, **options)
            finally:
                taken = perf_counter() - began
                self._now[name] = self._now.get(name, 0.0) + taken - self._inside.pop()
                self._inside[-1] += taken

        return call

    def end_step(self) -> None:
        """The parts timed since the last call were those of one step."""
        self._steps.append(self._now)
        self._now = {}

    def table(self) -> str:
        names = dict.fromkeys(name for step in self._steps for name in step)
        found = {name: [step.get(name, 0.0) for step in self._steps] for name in names}
        return table(found | {"a step": [sum(step.values()) for step in self._steps]})


class DeviceParts(Parts):
    """Seconds between the device's arrival at what a call has enqueued and its end."""

    def __init__(self) -> None:
        self._events: dict[str, list[tuple[Any, Any]]] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            result = function(*args, **options)
            end.record()
            self._events.setdefault(name, []).append((begin, end))
            return result

        return call

    def table(self) -> str:
        import torch

        torch.cuda.synchronize()
        return table({
            name: [begin.elapsed_time(end) / 1e3 for begin, end in pairs] for name, pairs in self._events.items()
        })  # fmt: skip


def table(seconds: Mapping[str, list[float]]) -> str:
    """Medians and 90th percentiles in microseconds."""
    lines = []
    for name, found in seconds.items():
        us = sorted(1e6 * each for each in found)
        lines.append(f"  {name:34s} median {statistics.median(us):6.0f} us, p90 {us[len(us) * 9 // 10]:6.0f}")
    return "\n".join(lines)
