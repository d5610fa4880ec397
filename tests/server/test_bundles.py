"""Dumped requests: what is in them, what never is, and reading them back."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.cli.main import main
from tahr.errors import ConfigError
from tahr.server.observe import request_dumps as bundles
from tahr.server.state.settings import Settings

SECRET, KEY = "the-butler-did-it", "sk-very-secret"


@contextmanager
def dumping(folder: Path, **more: Any) -> Iterator[httpx.Client]:
    settings = Settings(port=0, log_interval_s=0, request_dump_dir=str(folder), api_keys=(KEY,), **more)
    with (
        serving(ScriptedEngine(), settings=settings) as running,
        httpx.Client(base_url=running.address, headers={"authorization": f"Bearer {KEY}", "cookie": KEY}) as client,
    ):
        yield client


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    requested = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 9, **body}
    return client.post("/v1/chat/completions", json=requested).json()  # type: ignore[no-any-return]


def test_a_bundle_tells_what_happened_but_not_what_was_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with dumping(tmp_path) as client:
        made = ask(client, stop=SECRET, cache_salt=SECRET, user=SECRET, metadata={SECRET: SECRET})
        ids = client.post("/v1/completions", json={"prompt": [1, 2, 3, 250], "max_tokens": 2}).json()["id"]
        client.post("/v1/completions", content=SECRET)
        ask(client, temperature=SECRET, **{SECRET: 1})
        client.get("/v1/models")
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*.json"))
    assert len(list(tmp_path.iterdir())) == 4
    assert SECRET.encode() not in everything and KEY.encode() not in everything
    found = bundles.read(tmp_path / ids)
    assert found["request"]["prompt"] == {"tokens": 4} and found["prompt"] == {"n_tokens": [4]}
    found = bundles.read(tmp_path / made["id"])
    assert found["request"]["messages"] == [{"role": "user", "content": {"chars": len(SECRET)}}]
    assert found["response"]["n_prompt"] == made["usage"]["prompt_tokens"]
    assert found["response"]["finish"] == "length" and found["response"]["status"] == 200
    assert found["sampling"]["max_tokens"] == 9 and found["model"]["name"] == "scripted"
    assert found["headers"]["authorization"] == found["headers"]["cookie"] == "(removed)"
    assert found["timings"]["seconds"] > 0 and found["environment"]["settings"]["api_keys"] == 1
    assert main(["replay-bundle", str(tmp_path / made["id"])]) == 0
    assert capsys.readouterr().out.startswith(f"PASS {made['id']}: 9 files")
    assert main(["replay-bundle", str(tmp_path / made["id"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"


def test_requests_of_other_apis_are_dumped_without_what_was_said(tmp_path: Path) -> None:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {"type": SECRET, "role": SECRET}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": SECRET}
    messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    with dumping(tmp_path) as client:
        first = client.post("/v1/messages", json={"messages": messages, "max_tokens": 5}).json()
        second = client.post("/v1/responses", json={"input": SECRET, "metadata": {"type": SECRET}}).json()
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*.json"))
    assert SECRET.encode() not in everything
    assert {first["id"], second["id"]} == {path.name for path in tmp_path.iterdir()}
    assert bundles.read(tmp_path / first["id"])["manifest"]["route"] == "/v1/messages"


def test_refused_requests_are_dumped_too(tmp_path: Path) -> None:
    with dumping(tmp_path) as client:
        ask(client, temperature=-1)
    (folder,) = tmp_path.iterdir()
    found = bundles.read(folder)
    assert found["response"] == {"status": 400} and found["request"]["temperature"] == -1


def test_with_texts_it_can_be_sent_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAHR_API_KEY", KEY)
    with dumping(tmp_path, request_dump_texts=True) as client:
        requested = {"prompt": "x", "n": 2, "max_tokens": 9, "stream": True, "echo": True}
        with client.stream("POST", "/v1/completions", json=requested) as stream:
            list(stream.iter_lines())
        while not list(tmp_path.rglob("manifest.json")):
            time.sleep(0.01)
        (folder,) = tmp_path.iterdir()
        assert KEY not in (folder / "headers.json").read_text()
        assert main(["replay-bundle", str(folder), "--url", str(client.base_url)]) == 0
        assert "gives the same reply again" in capsys.readouterr().out
        rewrite(folder, "response", texts=["other", "words"])
        assert main(["replay-bundle", str(folder), "--url", str(client.base_url)]) == 4
        assert "The reply is another now" in capsys.readouterr().err
    assert main(["replay-bundle", str(folder), "--url", "http://127.0.0.1:9"]) == 5


def rewrite(folder: Path, name: str, **changes: Any) -> None:
    """Change a file of a bundle as if it had been written so."""
    found = bundles.read(folder)
    texts = {file: found[file] for file in bundles.FILES} | {name: {**found[name], **changes}}
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    bundles.write(folder, texts, {key: found["manifest"][key] for key in ("id", "route", "texts")})


@pytest.mark.parametrize("name", bundles.NAMES)
def test_a_missing_or_changed_file_is_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "one"
    bundles.write(folder, {file: {} for file in bundles.FILES}, {"id": "one", "route": "/", "texts": False})
    assert bundles.read(folder)["manifest"]["id"] == "one"
    (folder / name).write_bytes(b"{} ")
    assert main(["replay-bundle", str(folder)]) == 6
    (folder / name).unlink()
    assert main(["replay-bundle", str(folder)]) == 6
    assert f"{name} is missing" in capsys.readouterr().err


ODD_MANIFESTS = {
    "digests that are a list": b'{"format": 1, "sha256": []}',
    "a digest that is a list": b'{"format": 1, "sha256": {"request.json": []}}',
    "no digests": b'{"format": 1}',
    "200,000 brackets": b"[" * 200_000,
    "JSON too deep to print": b'{"format": 1, "sha256": {}, "x": ' + b"[" * 600 + b"]" * 600 + b"}",
    "a format that is a list": b'{"format": [1]}',
}


@pytest.mark.parametrize("odd", ODD_MANIFESTS)
def test_odd_manifests_are_refused_in_a_sentence(odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundles.write(tmp_path / "one", {name: {} for name in bundles.FILES}, {"id": "one", "route": "/", "texts": False})
    (tmp_path / "one" / bundles.MANIFEST).write_bytes(ODD_MANIFESTS[odd])
    assert main(["replay-bundle", str(tmp_path / "one")]) == 6
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and ".json" in said


def deep(n: int) -> Any:
    tree: Any = 1
    for _ in range(n):
        tree = [tree]
    return tree


@pytest.mark.parametrize("name", ["response", "request", "timings"])
def test_what_is_too_deep_to_print_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts: dict[str, Any] = {file: {} for file in bundles.FILES} | {name: {"status": deep(400)}}
    bundles.write(tmp_path / "one", texts, {"id": "one", "route": "/", "texts": False})
    for options in ([], ["--json"]):
        assert main(["replay-bundle", str(tmp_path / "one"), *options]) == 6
        assert "nested" in capsys.readouterr().err


def test_a_secret_in_a_bundle_fails_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "one"
    texts: dict[str, Any] = {file: {} for file in bundles.FILES} | {"headers": {"Authorization": KEY}}
    bundles.write(folder, texts, {"id": "one", "route": "/", "texts": False})
    assert main(["replay-bundle", str(folder)]) == 6
    assert "may be a secret" in capsys.readouterr().err


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_DUMPS", 2)
    with dumping(tmp_path) as client:
        made = [ask(client)["id"] for _ in range(4)]
    assert {path.name for path in tmp_path.iterdir()} == set(made[2:])


def test_texts_need_a_folder_and_a_folder_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a folder"):
        bundles.open_dumps(None, True, {})
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        bundles.open_dumps(str(tmp_path / "file"), False, {})
    assert main(["replay-bundle", str(tmp_path / "nowhere")]) == 3


@contextmanager
def listener(reply: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that writes down what it is sent and always answers the same."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    received.append(connection.recv(1 << 16))
                    connection.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", received
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def with_texts(folder: Path, route: str) -> Path:
    texts: dict[str, Any] = {file: {} for file in bundles.FILES} | {"request": {"prompt": "x"}}
    bundles.write(folder, texts, {"id": "one", "route": route, "texts": True})
    return folder


def test_the_key_goes_to_the_address_the_user_gave_and_to_known_routes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAHR_API_KEY", KEY)
    with listener(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") as (thief, stolen):
        folder = with_texts(tmp_path / "routes", f"@{thief}/v1/completions")
        assert main(["replay-bundle", str(folder), "--url", "http://127.0.0.1"]) == 3
        assert "names the route" in capsys.readouterr().err
        moved = f"HTTP/1.1 302 Found\r\nlocation: http://{thief}/v1/completions\r\ncontent-length: 0\r\n\r\n"
        with listener(moved.encode()) as (requested, received):
            folder = with_texts(tmp_path / "redirect", "/v1/completions")
            assert main(["replay-bundle", str(folder), "--url", f"http://{requested}"]) == 5
        assert KEY.encode() in received[0] and not stolen


@pytest.mark.parametrize("manifest", [{"id": 3, "route": "/"}, {"id": "a"}, {"id": "\x1b[2Jx", "route": "/"}])
def test_a_bundle_from_a_stranger_is_checked(
    manifest: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundles.write(tmp_path / "one", {file: {} for file in bundles.FILES}, {"texts": False, **manifest})
    assert main(["replay-bundle", str(tmp_path / "one")]) == (0 if len(manifest) == 2 and manifest["id"] != 3 else 6)
    assert "\x1b" not in capsys.readouterr().out
