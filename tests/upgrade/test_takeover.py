"""Takeovers: whatever the new server is and wherever it dies, the running one goes on."""

import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.errors import ServerError
from tahr.server import lifecycle
from tahr.server.http.listening import Listener, first_address
from tahr.server.lifecycle import HttpServer
from tahr.server.models.registry import Phase
from tahr.server.state.settings import Settings
from tahr.server.status import servers
from tahr.server.status.servers import Announcement
from tahr.server.takeover import giving, messages, taking
from tahr.server.takeover.messages import (
    Go,
    Hello,
    Passed,
    Ready,
    Refusal,
    Taken,
    TakeoverMessage,
    Welcome,
    decode,
    send,
)

pytestmark = pytest.mark.skipif(not messages.IS_HERE, reason="takeovers need Linux")

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "tahr"


def settings(**more: Any) -> Settings:
    return Settings(**{"port": 0, "log_interval_s": 0, "drain_timeout_s": 10.0, **more})


@contextmanager
def running(engine: ScriptedEngine | None = None, **more: Any) -> Iterator[HttpServer]:
    """A server that others find."""
    with serving(engine or ScriptedEngine(), settings=settings(**more), announcement=Announcement(print)) as server:
        yield server


def new_settings(server: HttpServer, **more: Any) -> Settings:
    """The settings of a server for the same address."""
    return settings(port=int(server.address.rpartition(":")[2]), **more)


def serves(server: HttpServer) -> bool:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    return httpx.post(server.address + CHAT, json=body, timeout=5).status_code == 200


def until(condition: Callable[[], bool], within_s: float = 5) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def hailed(server: HttpServer) -> socket.socket:
    """A connection to a server's private socket."""
    assert servers.running()
    made = taking.connected(Announcement(print).socket_path)
    made.settimeout(5)
    return made


def told(connection: socket.socket, message: TakeoverMessage) -> bytes:
    send(connection, message)
    return connection.recv(messages.MOST_BYTES)


# ---- one that succeeds --------------------------------------------------------------------------------------


def test_the_socket_is_passed_on_and_the_running_server_drains() -> None:
    with running() as server:
        taken = taking.begin(new_settings(server), is_cold=False)
        assert taken and taken.address == server.address
        assert serves(server) and not taken.has_place
        with httpx.stream("POST", server.address + CHAT, json=slow(), timeout=20) as response:
            lines = response.iter_lines()
            next(lines)
            listener = taken.take()
            assert taken.has_place and listener.address == server.address
            assert servers.running() == []  # `tahr stop` ends the new one
            assert not any(Path(servers.folder()).glob("*.json"))
            waiting = socket.create_connection(listener.socket.getsockname(), timeout=5)
            listener.socket.settimeout(5)
            listener.socket.accept()[0].close()  # nobody but us accepts
            waiting.close()
            events = [line[6:] for line in lines if line.startswith("data: ")]
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "stop"
        until(lambda: server._uvicorn.should_exit)
        listener.socket.close()


def slow(text: str = "SLOW please") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "stream": True}


def test_where_no_server_is_there_is_nothing_to_take_over() -> None:
    assert taking.begin(settings(port=1), is_cold=False) is None
    with running() as server, pytest.raises(ServerError, match="any free one"):
        taking.begin(settings(host=server.settings.host), is_cold=False)


def test_a_server_that_has_ended_meanwhile_leaves_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server:
        taken = taking.begin(new_settings(server), is_cold=False)
        assert taken
        address = server.address
    monkeypatch.setattr(taking.Taking, "_has_ended", True)
    listener = taken.take()
    assert listener.address == address
    listener.socket.close()


# ---- one that is refused ------------------------------------------------------------------------------------


def refusal(server: HttpServer, is_cold: bool = False, **more: Any) -> str:
    with pytest.raises(ServerError) as caught:
        taking.begin(new_settings(server, **more), is_cold=is_cold)
    assert serves(server)
    return str(caught.value)


def test_two_at_once() -> None:
    with running() as server:
        first = taking.begin(new_settings(server), is_cold=False)
        assert first
        said = refusal(server)
        assert f"process {os.getpid()} takes it over already" in said and said.endswith("It goes on.")
        first.take().socket.close()


def test_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server:
        monkeypatch.setattr(giving, "is_ours", lambda _: False)
        assert "it belongs to another user" in refusal(server)
        monkeypatch.setattr(giving, "is_ours", messages.is_ours)
        monkeypatch.setattr(taking, "is_ours", lambda _: False)
        assert "it belongs to another user" in refusal(server)


STRANGER = """
import socket, sys
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.settimeout(5)
made.connect(sys.argv[1])
made.send(b'{"type": "hello", "protocol": 1}')
print(made.recv(4096).decode())
"""


SYSTEM_PYTHON = "/usr/bin/python3"  # the tests' own may lie where others cannot look


@pytest.mark.skipif(os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists(), reason="only root can be somebody else")
def test_the_system_says_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> subprocess.CompletedProcess[str]:
        command = [SYSTEM_PYTHON, "-c", STRANGER, str(Announcement(print).socket_path)]
        return subprocess.run(command, capture_output=True, text=True, user=65534, group=65534, extra_groups=[])

    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        with running() as server:
            assert "PermissionError" in ask().stderr  # the folder is its user's own
            servers.folder().chmod(0o755)
            assert "PermissionError" in ask().stderr  # the socket, too
            Announcement(print).socket_path.chmod(0o666)
            assert "it belongs to another user" in ask().stdout
            assert serves(server)


def test_another_version() -> None:
    with running() as server:
        with hailed(server) as connection:
            answer = messages.DECODER.decode(told(connection, Hello(messages.PROTOCOL + 1)))
        assert (
            isinstance(answer, Refusal) and "speaks version 1 of takeovers, and the new one version 2" in answer.reason
        )
        assert serves(server)


def test_a_server_that_loads_or_ends() -> None:
    with running() as server:
        for phase in (Phase.LOADING, Phase.CLOSING):
            server.state.models.phase = phase
            with pytest.raises(ServerError, match="loading or ending"):
                taking.begin(new_settings(server), is_cold=False)
        server.state.models.phase = Phase.READY


def test_models_on_a_gpu_do_not_fit_twice() -> None:
    engine = ScriptedEngine()
    engine.n_device_bytes = 10
    with running(engine) as server:
        assert "use --takeover=cold" in refusal(server)
        taken = taking.begin(new_settings(server), is_cold=True)
        assert taken
        taken.take().socket.close()


@pytest.mark.parametrize("option", ["state_dir", "decision_trace_jsonl", "chrome_trace"])
def test_files_that_two_cannot_write(option: str, tmp_path: Path) -> None:
    files = {option: str(tmp_path / "one")}
    with running(**files) as server:
        said = refusal(server, **files)
        assert f"it has {tmp_path}/one open (--{option.replace('_', '-')})" in said and "--takeover=cold" in said
        taken = taking.begin(new_settings(server, **{option: str(tmp_path / "other")}), is_cold=False)
        assert taken
        taken.take().socket.close()


def test_a_port_that_systemd_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        monkeypatch.setattr(lifecycle, "bind", lambda *_: Listener(held.dup(), outlives_us=True))
        with running() as server:
            assert "systemd holds its port" in refusal(server)


def test_a_server_in_another_container_or_without_a_socket() -> None:
    with running() as server:
        path = Announcement(print).path
        said = json.loads(path.read_text())
        path.write_text(json.dumps(said | {"namespace": "pid:[1]"}))
        assert "another container" in refusal(server)
        path.write_text(json.dumps(said))
        path.with_suffix(".sock").rename(path.with_suffix(".away"))
        assert "it gives its socket to nobody" in refusal(server)


# ---- one that dies half way ---------------------------------------------------------------------------------


def test_words_that_are_none() -> None:
    with running() as server:
        for words in (b"", b"x", b"[" * 60_000, b'{"type": "go"}', b'{"type": "hello"}', b"\xff" * 70_000, b"{}"):
            with hailed(server) as connection:
                connection.send(words)
        assert serves(server)
        silent = [hailed(server) for _ in range(12)]  # more than may speak at once
        assert serves(server)
        for each in silent:
            each.close()
        until(lambda: not server._succession._giving or taken_over(server))  # type: ignore[union-attr]


def taken_over(server: HttpServer) -> bool:
    """Another takeover succeeds."""
    try:
        found = taking.begin(new_settings(server), is_cold=False)
    except ServerError:
        return False
    assert found
    found.take().socket.close()
    return True


STAGES = {
    "after its first words": (Welcome,),
    "when it was to take the socket": (Welcome, Passed),
    "when it was to serve": (Welcome, Passed, Go),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_new_server_that_dies(stage: str) -> None:
    answers = STAGES[stage]
    with running() as server, hailed(server) as connection:
        for message, answer in zip((Hello(messages.PROTOCOL), Ready(), Taken()), answers, strict=False):
            decode(told(connection, message), answer)
        if answers[-1] is not Welcome:
            waiting = socket.create_connection(server.address.removeprefix("http://").split(":"), timeout=10)
            waiting.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
        connection.close()
        if answers[-1] is not Welcome:
            assert waiting.recv(4096).startswith(b"HTTP/1.1 200")  # it waited in the socket
            waiting.close()
        assert serves(server)
        until(lambda: [each.address for each in servers.running()] == [server.address])
        assert taken_over(server)


def test_a_new_server_that_hangs_with_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "TAKEN_S", 0.3)
    with running() as server, hailed(server) as connection:
        decode(told(connection, Hello(messages.PROTOCOL)), Welcome)
        decode(told(connection, Ready()), Passed)
        assert serves(server)  # after 0.3 s
        assert connection.recv(100) == b""


def test_a_running_server_that_says_odd_things(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one does not take what is no listening socket, and does not wait for ever."""
    monkeypatch.setattr(taking, "REPLY_S", 0.5)

    def against(*answers: Callable[[socket.socket], None]) -> str:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(taking.REPLY_S)

        def play() -> None:
            for answer in answers:
                theirs.recv(messages.MOST_BYTES)
                answer(theirs)

        player = threading.Thread(target=play)
        player.start()
        try:
            with pytest.raises(ServerError) as caught:
                taking.Taking(ours, settings(port=1), "http://here", False).take()
        finally:
            player.join()
            ours.close()
            theirs.close()
        return str(caught.value)

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as other:
        passed, no_listener = (listener.fileno(),), (other.fileno(),)
        assert "no listening socket" in against(lambda to: send(to, Passed()))
        assert "no listening socket" in against(lambda to: send(to, Passed(), no_listener))
        assert "other words" in against(lambda to: void(to.send(b"nothing")))
        assert "out of turn" in against(lambda to: send(to, Welcome()))
        assert "it has had enough" in against(lambda to: send(to, Refusal("it has had enough")))
        assert "said nothing" in against(lambda _: None)
        assert "said nothing" in against(lambda to: send(to, Passed(), passed), lambda _: None)


def void(_: object) -> None:
    pass


def test_the_address_of_a_name() -> None:
    assert first_address("localhost", 80) in ("http://127.0.0.1:80", "http://[::1]:80")
    with pytest.raises(ServerError, match="another --host"):
        first_address("no.such.name.invalid", 80)
