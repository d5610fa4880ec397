"""Keys in the state: shown once, live without a restart, revoked in the middle of a stream, and faults of all kinds."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from keyed_server import by, changed, keyed, many_keys, new_key, settings
from pooled_server import pooled
from scripted_engine import ScriptedEngine, serving
from serve_process import served
from tahr.cli.main import main
from tahr.errors import ConfigError
from tahr.server import lifecycle
from tahr.server.http.accounts import NOBODY, Account, KeyRing, digest_of
from tahr.server.state.database import FILE, UPGRADES, VERSION
from tahr.server.state.keys import MAX_NAME_CHARS, StoredKeys, wrong_in
from tahr.server.state.state_file import StateFile

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
LONG = {"messages": [{"role": "user", "content": "SLOW"}], "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "LOOK_S", 0.02)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def status(client: httpx.Client, key: str, body: Any = BODY) -> int:
    return client.post(CHAT, json=body, headers=by(key)).status_code


# ---- a key's life -------------------------------------------------------------------------------------------


def test_keys_count_without_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with keyed(tmp_path) as (_, client):
        assert status(client, "") == 200, "without any key a server is open"
        key = new_key(tmp_path, "ci", capsys)
        until(lambda: status(client, "") == 401)
        assert status(client, key) == 200 and status(client, key[:-1]) == 401
        other = new_key(tmp_path, "other", capsys)
        until(lambda: status(client, other) == 200)
        assert main(["keys", "revoke", "ci", "--state-dir", str(tmp_path)]) == 0
        until(lambda: status(client, key) == 401)
        assert status(client, other) == 200
        assert main(["keys", "revoke", "other", "--state-dir", str(tmp_path)]) == 0
        until(lambda: status(client, other) == 401)
        assert status(client, "") == 401, "a server without a key that is good is not open"
    with keyed(tmp_path) as (_, client):
        assert status(client, "") == status(client, key) == 401
        again = new_key(tmp_path, "ci", capsys)
        until(lambda: status(client, again) == 200)
        assert status(client, key) == 401, "the name is used again, the key is not"


def test_a_server_process_follows_the_command(
    stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(str(stories), "--state-dir", str(tmp_path), "--api-key", "given") as server:
        key = new_key(tmp_path, "ci", capsys)
        body = {"prompt": "Once", "max_tokens": 2}

        def answers(key: str) -> int:
            reply = httpx.post(f"{server.address}/v1/completions", json=body, headers=by(key), timeout=30)
            return reply.status_code

        until(lambda: answers(key) == 200)
        assert answers("given") == 200 and answers("") == 401
        assert main(["keys", "revoke", "ci", "--state-dir", str(tmp_path)]) == 0
        until(lambda: answers(key) == 401)
        assert answers("given") == 200


def test_keys_are_nowhere_but_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    key = new_key(tmp_path, "ci", capsys)
    with keyed(tmp_path) as (_, client):
        assert status(client, key) == 200
        kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert key.encode() not in kept and key.removeprefix("sk-tahr-").encode() not in kept and key not in caplog.text
    assert digest_of(key) in (tmp_path / FILE).read_bytes()
    assert main(["keys", "list", "--state-dir", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert key not in listed and digest_of(key).hex()[:8] not in listed and "ci" in listed and "good" in listed
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("stream", [True, False])
def test_a_key_that_is_revoked_ends_its_replies_and_says_so(
    stream: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine(context_size=4096)
    key, other = (new_key(tmp_path, name, capsys) for name in ("ci", "other"))
    with keyed(tmp_path, engine) as (server, client), httpx.Client(base_url=server.address, timeout=30) as second:
        long = {**LONG, "stream": stream}
        begun = client.build_request("POST", CHAT, json={**LONG, "stream": True}, headers=by(other))
        beside = second.send(begun, stream=True)

        def revoke() -> None:
            until(lambda: len(engine.live) == 2)
            assert main(["keys", "revoke", "ci", "--state-dir", str(tmp_path)]) == 0

        thread = threading.Thread(target=revoke)
        thread.start()
        reply = client.post(CHAT, json=long, headers=by(key))
        thread.join()
        assert "was revoked while its request ran" in reply.text and "key_revoked" in reply.text
        assert reply.status_code == (200 if stream else 401)
        if stream:
            assert "finish_reason" not in reply.text.split("key_revoked")[1]
        until(lambda: len(engine.live) == 1)
        assert next(beside.iter_raw()), "others' replies go on"
        beside.close()
        until(lambda: not engine.live)
        assert not server.state.admission._n_active


def test_what_a_key_may_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = new_key(tmp_path, "few", capsys, "--requests-per-minute", "2", "--models", "Small", "other name")
    free = new_key(tmp_path, "free", capsys)
    with (
        serving(ScriptedEngine("large"), ScriptedEngine("small"), settings=settings(tmp_path)) as server,
        httpx.Client(base_url=server.address, timeout=30) as client,
    ):
        refused = client.post(CHAT, json=BODY, headers=by(key))
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "model_not_allowed"
        assert "Small" in refused.json()["error"]["message"] and refused.json()["error"]["param"] == "model"
        assert status(client, key, {**BODY, "model": "small"}) == 200
        limited = client.post(CHAT, json={**BODY, "model": "small"}, headers=by(key))
        assert limited.status_code == 429 and "More than 2 requests a minute" in limited.text
        names = [[card["id"] for card in client.get("/v1/models", headers=by(k)).json()["data"]] for k in (key, free)]
        assert names == [["small"], ["large", "small"]]
        assert client.get("/v1/models/large", headers=by(key)).status_code == 404
        assert [status(client, free) for _ in range(5)] == [200] * 5
        inputs = {"input": "x", "model": "large"}
        assert client.post("/v1/embeddings", json=inputs, headers=by(free)).status_code == 200


def test_no_model_is_loaded_for_a_key_that_may_not_use_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = new_key(tmp_path, "few", capsys, "--models", "a")
    with pooled(state_dir=str(tmp_path)) as made:
        made.client.headers = httpx.Headers(by(key))
        for path, body in ((CHAT, {**BODY, "model": "b"}), ("/api/generate", {"model": "b"})):
            refused = made.client.post(path, json=body)
            assert refused.status_code == 403, refused.text
        assert not made.loaders["b"].engines
        assert made.ask("a").status_code == 200 and made.loaders["a"].engines


# ---- accounts in memory -------------------------------------------------------------------------------------


def test_a_ring_never_opens_again() -> None:
    ring = KeyRing()
    assert ring.is_open and not ring.is_shared and ring.find("") is None and ring.holds(NOBODY)
    ring.put([Account("a", digest_of("x"))], 1)
    assert not ring.is_open and ring.is_shared and ring.find("x") == Account("a", digest_of("x"))
    ring.put([], 0)
    assert not ring.is_open and ring.is_shared and ring.find("x") is None
    assert not ring.holds(Account("a", digest_of("x"))) and KeyRing(["one"]).is_shared is False
    assert KeyRing(["one", "two"]).is_shared


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("ci", ""),
        ("Ana Müller", ""),
        ("团队/生产", ""),
        ("a@b.example", ""),
        ("", "1 to 64"),
        ("x" * (MAX_NAME_CHARS + 1), "1 to 64"),
        (" x", "begin with"),
        ("x ", "begin with"),
        ("=1+1", "begin with"),
        ("(none)", "begin with"),
        ("--models", "begin with"),
        ("a\nb", "has the character"),
        ("a,b", "has the character"),
        ('a"b', "has the character"),
        ("a\u202eb", "has the character"),
        ("a\x00b", "has the character"),
        ("e\u0301", "has the character"),
        ("\ud800x", "begin with"),
    ],
)
def test_names_of_keys(name: str, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (wrong in wrong_in(name)) and bool(wrong) == bool(wrong_in(name))
    if wrong and not name.startswith("-"):
        assert main(["keys", "add", name, "--state-dir", str(tmp_path)]) != 0
        assert capsys.readouterr().err.startswith("error: The name")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add",), "needs the name"),
        (("list", "x"), "takes no name"),
        (("revoke", "nobody"), "There is no key 'nobody'"),
        (("revoke", "gone"), "was revoked before"),
        (("add", "here"), "There is a key 'here' already"),
        (("add", "x", "--tokens-per-day", "0"), "must be at least 1"),
        (("revoke", "here", "--models", "a"), "belongs to `tahr keys add`"),
        (("add", "x", "--models", " "), "A name in --models is empty"),
    ],
)
def test_commands_that_cannot_be_right(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("here", "gone"):
        new_key(tmp_path, name, capsys)
    assert main(["keys", "revoke", "gone", "--state-dir", str(tmp_path)]) == 0
    assert main(["keys", *words, "--state-dir", str(tmp_path)]) != 0
    assert said in capsys.readouterr().err


def test_a_folder_without_state_is_not_made_by_looking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("list",), ("revoke", "x")):
        assert main(["keys", *words, "--state-dir", str(tmp_path / "none")]) != 0
        assert "There is no state in" in capsys.readouterr().err
    assert main(["keys", "list"]) != 0 and "--state-dir" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ---- faults -------------------------------------------------------------------------------------------------


def test_a_state_of_the_version_before_is_upgraded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        for statement in (*UPGRADES[0], "PRAGMA user_version = 1"):
            database.execute(statement)
        row = ("a", "me", None, b"{}", b"\x90", b"\x90", time.time(), 1)
        database.execute(f"INSERT INTO responses VALUES ({', '.join('?' * len(row))})", row)
    key = new_key(tmp_path, "ci", capsys)
    file = StateFile(tmp_path)
    assert [kept.response.id for kept in file.load(1000)] == ["a"]
    assert file.read("PRAGMA user_version") == [(VERSION,)] and VERSION == 2
    ring = KeyRing()
    StoredKeys(file, ring)
    assert ring.find(key)
    file.close()


def test_an_upgrade_that_fails_leaves_the_state_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        for statement in (*UPGRADES[0], "PRAGMA user_version = 1"):
            database.execute(statement)
    twice = ("CREATE TABLE usage (x)", "CREATE TABLE usage (x)")
    monkeypatch.setattr("tahr.server.state.database.UPGRADES", (UPGRADES[0], twice))
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot be used"):
            StateFile(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == {"responses"} and database.execute("PRAGMA user_version").fetchone() == (1,)


EDITS = {
    "a digest of another length": ("digest", b"short"),
    "a digest that is a text": ("digest", "text"),
    "a limit that is a text": ("tokens_per_day", "many"),
    "a limit below one": ("requests_per_minute", -5),
    "models that are no list": ("models", '{"a": 1}'),
    "models that are no JSON": ("models", "[" * 100_000),
    "models of numbers": ("models", "[1]"),
    "a name with line breaks": ("name", "a\nb"),
    "a name of bytes": ("name", b"\xff\x00"),
}


@pytest.mark.parametrize("edit", EDITS, ids=lambda name: name.replace(" ", "-"))
def test_a_key_that_was_damaged_by_hand_is_not_taken(
    edit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It is never good for more than it was, and the other keys stay good."""
    keys = [new_key(tmp_path, name, capsys, "--models", "scripted") for name in ("ci", "other")]
    column, value = EDITS[edit]
    with keyed(tmp_path) as (_, client):
        assert [status(client, key) for key in keys] == [200, 200]
        changed(tmp_path, f"UPDATE keys SET {column} = ? WHERE name = 'ci'", value)
        until(lambda: status(client, keys[0]) == 401)
        assert status(client, keys[1]) == 200 and "1 keys of the state are damaged" in caplog.text
    assert main(["keys", "list", "--state-dir", str(tmp_path)]) == 0
    assert "damaged" in capsys.readouterr().out


def test_keys_that_somebody_deletes_open_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = new_key(tmp_path, "ci", capsys)
    with keyed(tmp_path) as (_, client):
        changed(tmp_path, "DELETE FROM keys")
        until(lambda: status(client, key) == 401)
        assert status(client, "") == 401


def test_keys_stay_as_they_were_where_the_database_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key(tmp_path, "ci", capsys)
    with keyed(tmp_path) as (_, client):
        changed(tmp_path, "ALTER TABLE keys RENAME TO hidden")
        until(lambda: "cannot be read" in caplog.text)
        time.sleep(0.1)
        assert status(client, key) == 200 and status(client, "") == 401
        assert caplog.text.count("cannot be read") == 1
        changed(tmp_path, "ALTER TABLE hidden RENAME TO keys")
        assert main(["keys", "revoke", "ci", "--state-dir", str(tmp_path)]) == 0
        until(lambda: status(client, key) == 401)


def test_no_server_starts_open_because_its_keys_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_key(tmp_path, "ci", capsys)
    changed(tmp_path, "DROP TABLE keys")
    with pytest.raises(ConfigError, match="cannot be used"), serving(ScriptedEngine(), settings=settings(tmp_path)):
        pass


def test_states_that_the_command_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_key(tmp_path, "ci", capsys)
    (tmp_path / "file").write_text("")
    changed(tmp_path, "PRAGMA user_version = 99")
    places = {tmp_path: "written by a newer Tahr", tmp_path / "file" / "below": "cannot be used"}
    (tmp_path / "nonsense").mkdir()
    (tmp_path / "nonsense" / FILE).write_bytes(b"x" * 10_000)
    places[tmp_path / "nonsense"] = "its database is damaged"
    for folder, said in places.items():
        assert main(["keys", "add", "more", "--state-dir", str(folder)]) != 0
        printed = capsys.readouterr()
        assert said in printed.err and not printed.out


def test_a_command_waits_for_a_program_that_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tahr.cli.accounts import folder

    new_key(tmp_path, "ci", capsys)
    monkeypatch.setattr(folder, "BUSY_MS", 50)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert main(["keys", "add", "more", "--state-dir", str(tmp_path)]) != 0
        assert "another program is using its database" in capsys.readouterr().err
    new_key(tmp_path, "more", capsys)


def test_ten_thousand_keys(tmp_path: Path) -> None:
    keys = many_keys(tmp_path, [f"key {i}" for i in range(10_000)])
    with keyed(tmp_path) as (server, client):
        assert len(server.state.keys) == 10_000
        assert all(status(client, keys[f"key {i}"]) == 200 for i in (0, 5000, 9999))
        assert main(["keys", "revoke", "key 5000", "--state-dir", str(tmp_path)]) == 0
        until(lambda: status(client, keys["key 5000"]) == 401)
        assert status(client, keys["key 9999"]) == 200
