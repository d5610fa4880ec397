"""`--state-dir`: stored responses outlive the server, and what is wrong with the folder is said at the start."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, client_of
from serve_process import served
from tahr.errors import ConfigError
from tahr.server.conversations.store import (
    ResponseStore,
    StoredItem,
    StoredItems,
    StoredResponse,
    StoreLimits,
)
from tahr.server.http.errors import HttpError
from tahr.server.state import state_file
from tahr.server.state.database import FILE, VERSION
from tahr.server.state.settings import Settings
from tahr.server.state.state_file import LOCK, StateFile
from tool_replies import ROME, THOUGHT, TOOL_TEMPLATE, WEATHER, hermes

LIMITS = StoreLimits(100, 10**7, 1000)
TOOL = {"type": "function", **WEATHER["function"]}


def response(id: str, parent: StoredResponse | None = None, n: int = 10) -> StoredResponse:
    inputs, outputs = StoredItems([StoredItem("in", b"1")]), StoredItems([StoredItem(f"item {id}", b"2")])
    return StoredResponse(id, b'{"a":"%s"}' % (b"r" * (n - 8)), inputs, outputs, parent)


class Kept:
    """A store and its file, which are closed and opened again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.now = 1_000_000.0
        self.file: StateFile | None = None
        self.open()

    def open(self, limits: StoreLimits = LIMITS) -> ResponseStore:
        if self.file:
            self.file.close()
        self.file = StateFile(self.folder, lambda: self.now)
        self.store = ResponseStore(limits, lambda: self.now, self.file)
        self.store.restore(self.file.load(limits.max_bytes))
        return self.store

    def ids(self, owner: str = "me") -> list[str]:
        return [each.id for each in self.store.all_of(owner)]

    def rows(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / FILE)) as database, database:
            return [id for (id,) in database.execute("SELECT id FROM responses ORDER BY id")]


@pytest.fixture
def kept(tmp_path: Path) -> Any:
    made = Kept(tmp_path / "state")
    yield made
    assert made.file
    made.file.close()


# ---- a store --------------------------------------------------------------------------------------------------------


def test_responses_and_their_chains_are_there_again(kept: Kept) -> None:
    first = response("a")
    kept.store.add("me", first)
    second = response("b", first)
    kept.store.add("me", second)
    kept.store.add("other", response("c"))
    kept.store.remove("me", "a")
    n_bytes = kept.store.n_bytes
    assert kept.rows() == ["a", "b", "c"], "what others follow from stays"
    store = kept.open()
    assert kept.ids() == ["b"] and kept.ids("other") == ["c"] and store.n_bytes == n_bytes
    assert store.get("me", "b").conversation() == second.conversation() == [b"1", b"2"] * 2
    assert store.item("me", "item b") == b"2" and store.item("me", "item c") is None
    with pytest.raises(HttpError):
        store.get("other", "b")
    store.remove("me", "b")
    assert kept.rows() == ["c"]
    assert (kept.folder.stat().st_mode | (kept.folder / FILE).stat().st_mode) & 0o077 == 0


def test_an_ancestor_that_was_forgotten_counts_again(kept: Kept) -> None:
    first = response("a")
    kept.store.add("me", first)
    kept.store.remove("me", "a")
    assert kept.rows() == []
    kept.store.add("me", response("b", first))  # its request was running meanwhile
    kept.open()
    assert kept.ids() == ["b"] and len(kept.store.get("me", "b").conversation()) == 4


def test_limits_hold_over_restarts(kept: Kept) -> None:
    for i in range(10):
        kept.store.add("me", response(str(i)))
        kept.now += 1
    kept.open(StoreLimits(4, 10**7, 1000))
    assert kept.ids() == ["6", "7", "8", "9"] == kept.rows()
    kept.now += 998
    kept.open()
    assert kept.ids() == ["8", "9"] == kept.rows()
    kept.store.add("me", response("large", n=5000))
    kept.open(StoreLimits(100, 3000, 1000))
    assert kept.ids() == [] == kept.rows()


def test_a_clock_that_is_set_back_a_day(kept: Kept) -> None:
    kept.store.add("me", response("a"))
    kept.now -= 86_400
    kept.open()
    assert kept.ids() == ["a"]
    kept.now += 1001
    assert kept.ids() == []


def test_a_full_disk_loses_nothing_in_memory(
    kept: Kept, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept.file
    kept.store.add("me", response("a"))
    database = kept.file._database
    (n_pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {n_pages}")
    for id in "bcd":
        kept.store.add("me", response(id, n=100_000))
    kept.store.remove("me", "c")
    assert kept.ids() == ["a", "b", "d"] and kept.rows() == ["a"]
    assert len(caplog.records) == 1 and "The state cannot be written (the disk is full)" in caplog.text
    database.execute("PRAGMA max_page_count = 1000000")
    kept.store.add("me", response("e"))
    assert kept.rows() == ["a"], "not yet: every attempt may be a large one"
    monkeypatch.setattr(state_file, "RETRY_S", 0.0)
    kept.store.add("me", response("f", kept.store.get("me", "e")))
    assert kept.rows() == ["a", "b", "d", "e", "f"]
    assert len(kept.open().get("me", "f").conversation()) == 4


def test_what_a_full_disk_refused_is_written_without_another_response(kept: Kept) -> None:
    """When it is time to try again, and at the end of the server."""
    assert kept.file
    kept.store.add("me", response("a"))
    database = kept.file._database
    (n_pages,) = database.execute("PRAGMA page_count").fetchone()
    for id in "bc":
        database.execute(f"PRAGMA max_page_count = {n_pages}")
        kept.store.add("me", response(id, n=100_000))
        kept.store.flush()
        assert id not in kept.rows(), "too early, and there is no place"
        database.execute("PRAGMA max_page_count = 1000000")
        kept.store.flush()
        assert id not in kept.rows()
        kept.store.flush(at_once=True)
        (n_pages,) = database.execute("PRAGMA page_count").fetchone()
    assert kept.rows() == ["a", "b", "c"]


def test_a_database_with_another_name_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    folder = tmp_path / "state"
    folder.mkdir(0o700)
    os.link(elsewhere, folder / FILE)
    with pytest.raises(ConfigError, match="has another name, too"):
        StateFile(folder)
    assert elsewhere.stat().st_size == 0


def test_a_program_that_holds_the_database_holds_up_no_server(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    with closing(sqlite3.connect(kept.folder / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        kept.store.add("me", response("a"))
        assert time.monotonic() - began < 0.7
    assert kept.ids() == ["a"] and "(another program is using its database)" in caplog.text


def test_a_log_that_somebody_deletes_ends_no_request(
    kept: Kept, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.store.add("me", response("a"))
    (kept.folder / f"{FILE}-wal").unlink()
    monkeypatch.setattr(state_file, "CHECKPOINT_BYTES", 1000)
    kept.store.add("me", response("b", n=5000))
    assert kept.ids() == ["a", "b"] and "The state cannot be written" in caplog.text


@pytest.mark.parametrize("becomes", ["nothing", "another"])
def test_a_folder_that_is_deleted_is_said(kept: Kept, caplog: pytest.LogCaptureFixture, becomes: str) -> None:
    """What is written into a file without a name, no later server finds."""
    kept.store.add("me", response("a"))
    away = kept.folder.with_name("away")
    kept.folder.rename(away)
    if becomes == "another":
        kept.folder.mkdir()
        (kept.folder / FILE).write_bytes(b"")
    for id in "bc":
        kept.store.add("me", response(id))
    assert kept.ids() == ["a", "b", "c"]
    assert [record.getMessage().split("(")[0] for record in caplog.records] == ["The state cannot be written "]
    if becomes == "another":
        (kept.folder / FILE).unlink()
        kept.folder.rmdir()
    away.rename(kept.folder)
    kept.store.flush(at_once=True)
    assert kept.rows() == ["a", "b", "c"]


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    StateFile(folder).close()
    (folder / FILE).chmod(0o664)
    made = StateFile(folder)
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600
    made.close()


def test_a_checkpoint_brings_it_to_the_disk(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "CHECKPOINT_BYTES", 1000)
    monkeypatch.setattr(state_file, "LOG_BYTES", 1 << 20)
    for i in range(300):
        kept.store.add("me", response(str(i), n=20_000))
    assert (kept.folder / f"{FILE}-wal").stat().st_size < 2 << 20
    assert (kept.folder / FILE).stat().st_size < 6 << 20
    kept.open()
    assert len(kept.ids()) == 100


# ---- folders that cannot be used -------------------------------------------------------------------------------------


def other_database(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("CREATE TABLE songs (name TEXT)")


def newer(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")


def damaged(folder: Path) -> None:
    content = bytearray((folder / FILE).read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    (folder / FILE).write_bytes(content)


def cut(folder: Path) -> None:
    os.truncate(folder / FILE, 5000)


def nonsense(folder: Path) -> None:
    (folder / FILE).write_bytes(b"x" * 10_000)


def wrong_types(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("UPDATE responses SET reply = 10000000000")


def wrong_json(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("UPDATE responses SET reply = ?", (b"{{",))


def wrong_text(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("UPDATE responses SET reply = ?", (b'{"id": "\xff"}',))


def endless_view(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("DROP TABLE responses")
        database.execute(
            "CREATE VIEW responses AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id,"
            " 'a' AS owner, NULL AS parent, x'7b7d' AS reply, x'90' AS inputs, x'90' AS outputs, 1.0 AS stored_at,"
            " 1 AS is_listed FROM c"
        )


def trigger(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("CREATE TRIGGER t AFTER INSERT ON responses BEGIN DELETE FROM responses; END")


def negative(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("PRAGMA user_version = -1")


def wrong_items(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("UPDATE responses SET inputs = ?", (b"\xdd\xff\xff\xff\xff",))


def a_pipe(folder: Path) -> None:
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)


def a_link(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / FILE).symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (other_database, "is a database of something else|cannot be used"),
        (newer, "was written by a newer Tahr"),
        (damaged, r"cannot be used \(its database is damaged\)"),
        (cut, r"cannot be used \(its database is damaged\)"),
        (nonsense, r"cannot be used \(its database is damaged\)"),
        (wrong_types, r"cannot be used \(its database is damaged\)"),
        *(
            (harm, r"cannot be used \(its database is damaged\)")
            for harm in (wrong_json, wrong_text, endless_view, trigger, negative)
        ),
        (wrong_items, r"cannot be used \(its database is damaged\)"),
        (a_pipe, "not a regular file"),
        (a_link, "cannot be used"),
    ],
)
def test_a_state_that_cannot_be_used_is_left_as_it_is(tmp_path: Path, harm: Callable[[Path], None], said: str) -> None:
    if harm is other_database:
        tmp_path.mkdir(exist_ok=True)
    else:
        made = Kept(tmp_path)
        for i in range(50):
            made.store.add("me", response(str(i), n=500))
        assert made.file
        made.file.close()
    harm(tmp_path)
    before = (tmp_path / FILE).read_bytes() if (tmp_path / FILE).is_file() else b""
    for _ in range(2):  # the lock is free again
        with pytest.raises(ConfigError, match=said):
            Kept(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before if before else True


def test_parents_that_are_missing_or_in_a_circle(tmp_path: Path) -> None:
    made = Kept(tmp_path)
    last: StoredResponse | None = None
    for id in "abcd":
        last = response(id, last)
        made.store.add("me", last)
    made.store.add("me", response("alone"))
    assert made.file
    made.file.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("UPDATE responses SET parent = 'c' WHERE id = 'b'")
        database.execute("UPDATE responses SET parent = 'gone' WHERE id = 'a'")
    again = Kept(tmp_path)
    assert again.ids() == ["alone"] == again.rows()
    assert again.file
    again.file.close()


def test_two_servers_and_folders_that_are_none(kept: Kept, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Another server keeps its state in"):
        StateFile(kept.folder)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(ConfigError, match="The state cannot be kept in"):
            StateFile(folder)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / LOCK).symlink_to(tmp_path / "file")
    with pytest.raises(ConfigError, match="The state cannot be kept in"):
        StateFile(tmp_path / "linked")


# ---- a server ------------------------------------------------------------------------------------------------


def test_a_chain_keeps_calls_and_reasoning(tmp_path: Path) -> None:
    def settings() -> Settings:
        return Settings(port=0, log_interval_s=0, api_keys=("one", "two"), state_dir=str(tmp_path))

    one = {"authorization": "Bearer one"}
    engine = ScriptedEngine(context_size=4096, template=TOOL_TEMPLATE)
    with client_of(engine, settings=settings(), headers=one) as client:
        engine.scripts = [THOUGHT.replace("Yes.", hermes(ROME)), "Then it rains."]
        first = client.post("/v1/responses", json={"input": "Weather?", "tools": [TOOL]}).json()
        items = client.get(f"/v1/responses/{first['id']}/input_items").json()
        assert [each["type"] for each in first["output"]] == ["reasoning", "function_call"]
    with client_of(engine, settings=settings(), headers=one) as client:
        assert client.get(f"/v1/responses/{first['id']}").json() == first
        assert client.get(f"/v1/responses/{first['id']}/input_items").json() == items
        body = {"previous_response_id": first["id"], "input": "And then?"}
        second = client.post("/v1/responses", json=body)
        assert second.status_code == 200 and second.json()["previous_response_id"] == first["id"]
        seen = engine.seen[-1].text
        assert "[user]Weather?" in seen and '"city": "Rome"' in seen and "[user]And then?" in seen
        stranger = client.get(f"/v1/responses/{first['id']}", headers={"authorization": "Bearer two"})
        assert stranger.status_code == 404


def test_a_killed_server_leaves_what_it_has_said(stories: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    options = (str(stories), "--state-dir", str(tmp_path / "state"), "--chat-template", str(template))
    made = []
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        with served(*options) as server:
            listed = httpx.get(f"{server.address}/v1/responses", params={"order": "asc"}).json()["data"]
            assert [each["id"] for each in listed] == made
            body = {"input": "Once", "max_output_tokens": 4, "previous_response_id": made[-1] if made else None}
            reply = httpx.post(f"{server.address}/v1/responses", json=body, timeout=30)
            assert reply.status_code == 200, reply.text
            made.append(reply.json()["id"])
            server.process.send_signal(number)
            server.process.wait(20)
