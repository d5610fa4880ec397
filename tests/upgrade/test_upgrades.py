"""Upgrades of real servers: clients lose nothing, and what is stored outlives them."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import story_model
from serve_process import ServeProcess, served
from tahr.server.takeover.messages import IS_HERE

pytestmark = [pytest.mark.skipif(not IS_HERE, reason="takeovers need Linux"), pytest.mark.serial]

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.mark.timeout(240)
def test_upgrades_under_load_lose_no_request(stories: Path) -> None:
    """Sixteen streams and steady requests; a new server is killed on its way. The script does it 20 times."""
    script = str(ROOT / "benchmarks" / "takeover.py")
    command = [sys.executable, script, str(stories), "--times", "2", "--rate", "4", "-t", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 warm takeovers, 1 new servers killed" in done.stdout and " 0 failed" in done.stdout


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


@pytest.mark.timeout(240)
def test_stored_responses_survive_and_clients_wait(tmp_path: Path) -> None:
    model = tmp_path / "story.gguf"
    model.write_bytes(story_model.to_gguf(story_model.arrays(), TEMPLATE))
    address = ("--addr", f"127.0.0.1:{free_port()}")
    options = (*address, "--model", f"story={model}", "--state-dir", str(tmp_path / "state"))
    with served(*options) as old:
        body = {"input": "Once upon a time", "max_output_tokens": 8}
        made = httpx.post(f"{old.address}/v1/responses", json=body, timeout=20).json()
        assert made["status"] == "incomplete"

        with served(*options, "--takeover") as refused:
            assert refused.wait(60) != 0
            said = "".join(refused.lines)
            assert "(--state-dir), which two cannot: use --takeover=cold. It goes on." in said
        with served(*address, "--model", "no/such/file.gguf", "--takeover=cold") as mistaken:
            assert mistaken.wait(60) != 0  # a model that is not there is noticed before anything ends
        assert httpx.get(f"{old.address}/ready").status_code == 200

        with served(*options, "--takeover=cold") as new:
            assert old.wait(60) == 0
            # Sent while nobody accepts: it waits in the socket until the models are loaded.
            kept = httpx.get(f"{old.address}/v1/responses/{made['id']}", timeout=60)
            assert kept.status_code == 200 and kept.json()["output"] == made["output"]
            follows = {"input": "and", "previous_response_id": made["id"], "max_output_tokens": 4}
            assert httpx.post(f"{new.address}/v1/responses", json=follows, timeout=20).status_code == 200
            assert new.process.poll() is None


@pytest.mark.timeout(240)
def test_a_signal_ends_the_new_server_alone(stories: Path) -> None:
    options = ("--addr", f"127.0.0.1:{free_port()}", "--model", f"story={stories}")
    with served(*options) as old:
        assert httpx.get(f"{old.address}/ready").status_code == 200
        for number in (signal.SIGTERM, signal.SIGINT):
            with served(*options, "--takeover") as new:
                wait_for_line(new, "answers meanwhile")
                new.signal(number)
                assert new.wait(60) in (128 + number, -number)  # the server handles signals a moment later
            assert httpx.get(f"{old.address}/ready").status_code == 200
        old.signal(signal.SIGTERM)
        assert old.wait() == 128 + signal.SIGTERM


def wait_for_line(server: ServeProcess, words: str) -> None:
    while not any(words in line for line in server.lines):
        assert server.process.poll() is None, server.lines
        os.sched_yield()
