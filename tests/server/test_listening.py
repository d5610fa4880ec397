"""The port that systemd holds for a server, and what is no such port."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import story_model
from tahr.errors import ServerError
from tahr.server.http.listening import bind, passed_socket

# As systemd starts a service: the socket is descriptor 3, and the variables name the process itself.
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "tahr", "serve", *sys.argv[2:]])
"""


def test_a_client_that_came_before_the_server_is_answered(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        waiting.request("GET", "/health")
        command = [sys.executable, "-c", START, str(held.fileno()), str(story_model.write(tmp_path))]
        with subprocess.Popen(command, pass_fds=[held.fileno()], stderr=subprocess.PIPE, text=True) as server:
            try:
                assert waiting.getresponse().status in (200, 503)  # 503: it still loads
            finally:
                server.send_signal(signal.SIGTERM)
            assert server.stderr is not None
            said = server.stderr.read()
        assert server.returncode == 128 + signal.SIGTERM, said
        held.settimeout(1)  # it still belongs to whoever made it


def pass_on(monkeypatch: pytest.MonkeyPatch, n_passed: str = "1", pid: int | None = None) -> None:
    monkeypatch.setenv("LISTEN_FDS", n_passed)
    monkeypatch.setenv("LISTEN_PID", str(pid or os.getpid()))


def test_a_socket_for_another_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_on(monkeypatch, pid=1)
    assert passed_socket() is None
    assert "LISTEN_FDS" not in os.environ  # nor does a child take it for its own


@pytest.mark.parametrize("n_passed", ["2", "-1", "x", ""])
def test_other_numbers_of_sockets_are_refused(monkeypatch: pytest.MonkeyPatch, n_passed: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        saved = os.dup(3) if is_open(3) else None
        os.dup2(held.fileno(), 3)
        try:
            pass_on(monkeypatch, n_passed)
            with pytest.raises(ServerError, match="ListenStream"):
                bind("127.0.0.1", 0)
        finally:
            if saved is not None:
                os.dup2(saved, 3)
                os.close(saved)


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
