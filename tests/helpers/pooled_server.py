"""A server whose scripted models are loaded on demand."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from scripted_engine import ScriptedEngine, serving
from tahr.errors import LoadError
from tahr.loading.model_facts import ModelFacts
from tahr.server.lifecycle import HttpServer
from tahr.server.models.registry import ServedModel
from tahr.server.state.settings import Settings


@dataclass
class ScriptedLoader:
    """Counts its loads and the bytes of all engines that exist; fails, or waits, where it is told to."""

    name: str
    memory: list[ScriptedEngine]
    size: int = 1000
    guess: int | None = None
    fails: int = 0
    delay_s: float = 0.0
    engines: list[ScriptedEngine] = field(default_factory=list)

    @property
    def source(self) -> str:
        return f"ollama:{self.name}"

    def facts(self) -> ModelFacts:
        return ModelFacts("gguf", "script", 134_515_008, "Q4_0", self.size, 1e9, "ab" * 32, "", {"a": 1})

    def n_bytes(self) -> int:
        return self.size if self.guess is None else self.guess

    def load(self) -> ScriptedEngine:
        time.sleep(self.delay_s)
        if self.fails:
            self.fails -= 1
            raise LoadError("The script has no weights.")
        engine = CountedEngine(self.name, self.memory)
        engine.n_bytes = self.size
        self.memory.append(engine)
        self.engines.append(engine)
        return engine


class CountedEngine(ScriptedEngine):
    def __init__(self, name: str, memory: list[ScriptedEngine]):
        super().__init__(name)
        self.memory = memory

    async def close(self) -> None:
        assert not self.live, "closed while a request runs"
        await super().close()
        self.memory.remove(self)


class PooledServer:
    """A server with scripted models `a`, `b`, `c`."""

    def __init__(self, server: HttpServer, loaders: dict[str, ScriptedLoader], memory: list[ScriptedEngine]):
        self.server, self.loaders, self.memory = server, loaders, memory
        self.client = httpx.Client(base_url=server.address, timeout=20)

    def ask(self, model: str, content: str = "hi", **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": f"to {model}: {content}"}]
        return self.client.post("/v1/chat/completions", json={"model": model, "messages": messages, **body})

    def states(self) -> dict[str, str]:
        return {each["id"]: each["state"] for each in self.client.get("/admin/models").json()["data"]}

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/admin/models/{path}", json=body)


@contextmanager
def pooled(budget: int | None = 2000, sizes: dict[str, int] | None = None, **settings: Any) -> Iterator[PooledServer]:
    memory: list[ScriptedEngine] = []
    loaders = {name: ScriptedLoader(name, memory, size) for name, size in (sizes or dict.fromkeys("abc", 1000)).items()}
    requested = Settings(port=0, log_interval_s=0, models_budget_bytes=budget, **settings)

    def models() -> list[ServedModel]:
        return [ServedModel((name,), loader=loader) for name, loader in loaders.items()]

    with serving(settings=requested, load=models) as server:
        made = PooledServer(server, loaders, memory)
        until(lambda: made.client.get("/ready").status_code == 200)
        yield made


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
