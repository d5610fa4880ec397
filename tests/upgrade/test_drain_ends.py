"""A drain ends when it said it would: what nobody finishes is ended, told, cut, and at last left behind."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from python_here import python_here
from scripted_engine import ScriptedEngine, serving
from tahr.server.lifecycle import HttpServer
from tahr.server.state import draining
from tahr.server.state.draining import CLOSING_S, MARGIN_S, DrainPlan
from tahr.server.state.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
SLOW_BODY = f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n{{".encode()


def settings(**more: Any) -> Settings:
    return Settings(port=0, log_interval_s=0, stream_interval_s=0, **more)


def connected(server: HttpServer) -> socket.socket:
    host, port = server.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def on_loop(server: HttpServer, work: Callable[[], None]) -> None:
    """Do something where the server's state may be changed."""
    done = threading.Event()
    loop = next(iter(server._uvicorn.clients)).loop
    loop.call_soon_threadsafe(lambda: (work(), done.set()))
    assert done.wait(10)


@pytest.mark.parametrize("timeout_s", [0, 0.1, 0.5, 1, 2, 3, 4, 5, 30, 600])
def test_everything_has_its_time_before_the_process_ends(timeout_s: float) -> None:
    plan = DrainPlan.of(timeout_s)
    assert 0 <= plan.end_s < plan.cancel_s < plan.cut_s < plan.exit_s
    assert plan.end_s >= timeout_s / 2 - 0.25, "most of the time is for requests"
    assert plan.exit_s - plan.cut_s >= CLOSING_S - 1e-9
    assert plan.exit_s <= (timeout_s if timeout_s >= 3 else timeout_s + 0.8)
    if timeout_s >= 4:
        assert plan.exit_s <= timeout_s - MARGIN_S + 1e-9, "within the timeout, and not by hundredths"


def test_a_request_that_comes_in_the_last_moment_is_not_waited_for() -> None:
    """Its body was awaited for as long as connections may take to close, beyond the drain."""
    with serving(ScriptedEngine(), settings=settings()) as server, connected(server) as client:
        client.sendall(b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        server.state.is_draining = True
        on_loop(server, server.state.models.close)
        on_loop(server, server.state.admission.end_all)
        client.sendall(SLOW_BODY)
        reply = b""
        while piece := client.recv(4096):
            reply += piece
        assert reply.startswith(b"HTTP/1.1 503")
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "closing"


def test_a_body_that_is_still_on_its_way_is_answered_then() -> None:
    with serving(ScriptedEngine(), settings=settings(drain_timeout_s=1.0)) as server, connected(server) as client:
        client.sendall(SLOW_BODY)
        while not server.state.admission.arriving:
            threading.Event().wait(0.01)
        on_loop(server, server.drain)
        reply = b""
        while piece := client.recv(4096):
            reply += piece
    assert reply.startswith(b"HTTP/1.1 503")


def test_a_process_ends_whatever_its_threads_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is the plan's; a server inside another program has none."""
    timers: list[tuple[float, Callable[[], None]]] = []

    class Timer:
        def __init__(self, after_s: float, work: Callable[[], None]):
            timers.append((after_s, work))

        def start(self) -> None: ...
        def cancel(self) -> None:
            timers.append((0.0, self.cancel))

    monkeypatch.setattr(draining.threading, "Timer", Timer)
    with serving(ScriptedEngine(), settings=settings(drain_timeout_s=7.0)) as server:
        ended: list[int] = []
        server._draining.exit_process = lambda: ended.append(1)
    assert [after for after, _ in timers] == [DrainPlan.of(7.0).exit_s]
    timers[0][1]()
    assert ended == [1]
    with serving(ScriptedEngine(), settings=settings()):
        pass
    assert len(timers) == 1


def test_a_thread_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(HANGS)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'helpers'}"}
    done = subprocess.run(python_here(str(program)), env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "the process ends although threads are at work: MainThread, " in done.stderr


HANGS = """
import asyncio, os, signal, time
from scripted_engine import ScriptedEngine
from tahr.server.lifecycle import HttpServer
from tahr.server.models.registry import ServedModel
from tahr.server.state.settings import Settings

def hang(*_):
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 1000)
    os.kill(os.getpid(), signal.SIGTERM)

models = [ServedModel(("scripted",), ScriptedEngine())]
server = HttpServer(Settings(port=0, log_interval_s=0, drain_timeout_s=0.1), lambda: models, hang)
raise SystemExit(server.run())
"""
