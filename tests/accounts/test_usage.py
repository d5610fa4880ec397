"""What keys have used: counted, kept, shown, and held against the tokens that a key has for a day."""

import csv
import io
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from keyed_server import by, changed, keyed, many_keys
from scripted_engine import ScriptedEngine, client_of
from tahr.cli.main import main
from tahr.engine.sequences.stats import EnergyUse
from tahr.server import lifecycle
from tahr.server.http.accounts import Account
from tahr.server.http.errors import HttpError
from tahr.server.http.records import RecordingRecord
from tahr.server.state import ledger as ledgers
from tahr.server.state.database import FILE, MemoryState
from tahr.server.state.energy_shares import EnergyShares
from tahr.server.state.ledger import FIELDS, Ledger, Use
from tahr.server.state.settings import Settings
from tahr.server.state.state_file import StateFile

CHAT = "/v1/chat/completions"
LONG = {"messages": [{"role": "user", "content": "SLOW"}], "max_tokens": 2000, "ignore_eos": True, "stream": True}
DAY = 86_400.0
NOON = 1_800_000_000.0 - 1_800_000_000.0 % DAY + DAY / 2  # 2027-01-15
FEW = Account("few", b"x", tokens_per_day=100)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "LOOK_S", 0.02)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


def shown(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["usage", "--state-dir", str(folder), *options]) == 0
    return capsys.readouterr().out


def sums(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shown(folder, capsys, "--format", "json", *options))
    return found


# ---- a server -----------------------------------------------------------------------------------------------


def test_what_a_key_has_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = many_keys(tmp_path, ["ana", "ben"], tokens_per_day=100_000, models=("scripted",))
    totals = {"prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0}
    with keyed(tmp_path) as (_, client):
        for i in range(3):
            reply = client.post(CHAT, json=chat(f"number {i}"), headers=by(keys["ana"])).json()["usage"]
            totals["prompt_tokens"] += reply["prompt_tokens"]
            totals["cached_tokens"] += reply["prompt_tokens_details"]["cached_tokens"]
            totals["output_tokens"] += reply["completion_tokens"]
        body = chat("streamed", stream=True, stream_options={"include_usage": True})
        events = client.post(CHAT, json=body, headers=by(keys["ana"])).text
        last = json.loads(events.split("data: ")[-2])["usage"]
        totals["prompt_tokens"] += last["prompt_tokens"]
        totals["cached_tokens"] += last["prompt_tokens_details"]["cached_tokens"]
        totals["output_tokens"] += last["completion_tokens"]
        vectors = client.post("/v1/embeddings", json={"input": ["ab", "cd"]}, headers=by(keys["ben"])).json()
        own = client.get("/v1/usage", headers=by(keys["ana"])).json()
        (row,) = own["data"]
        assert totals.items() <= row.items() and row["requests"] == 4 and row["model"] == "scripted"
        assert row["joules"] is None and 0 < row["seconds"] < 60 and row["day"] == own["day"]
        assert own["key"] == "ana" and own["tokens_per_day"] == 100_000 and own["models"] == ["scripted"]
        assert own["tokens_today"] == totals["prompt_tokens"] + totals["output_tokens"]
        assert client.get("/v1/usage").status_code == 401
        until(lambda: len(sums(tmp_path, capsys)) == 2)
        first, second = sums(tmp_path, capsys)
        assert totals.items() <= first.items() and first["key"] == "ana" and second["requests"] == 1
        assert second["prompt_tokens"] == vectors["usage"]["prompt_tokens"] and second["output_tokens"] == 0
    with keyed(tmp_path) as (_, client):
        again = client.get("/v1/usage", headers=by(keys["ana"])).json()
        assert again == own, "it outlives the server"


def test_usage_without_keys_or_state(tmp_path: Path) -> None:
    for given, names in (((), ["(none)"]), (("a", "b"), ["(api-key 1)", "(api-key 2)"])):
        with client_of(ScriptedEngine(), settings=Settings(port=0, log_interval_s=0, api_keys=given)) as client:
            for i, name in enumerate(names):
                headers = by(given[i]) if given else {}
                for _ in range(i + 1):
                    assert client.post(CHAT, json=chat("x"), headers=headers).status_code == 200
                made = client.get("/v1/usage", headers=headers).json()
                assert made["key"] == name and [row["requests"] for row in made["data"]] == [i + 1]


@pytest.mark.parametrize(
    "query", ["days=0", "days=401", "days=x", "days=-1", "days=1&days=2", "key=ben", "days=%EF%BC%91"]
)
def test_queries_that_are_refused(query: str, tmp_path: Path) -> None:
    (key,) = many_keys(tmp_path, ["ana"]).values()
    with keyed(tmp_path) as (_, client):
        assert client.get(f"/v1/usage?{query}", headers=by(key)).status_code == 400
        assert client.get("/v1/usage?days=400", headers=by(key)).status_code == 200


def test_who_leaves_pays_for_the_prompt_and_who_is_refused_does_not(tmp_path: Path) -> None:
    (key,) = many_keys(tmp_path, ["ana"]).values()
    engine = ScriptedEngine(context_size=4096)
    with keyed(tmp_path, engine) as (server, client):
        for body in (chat("REFUSE"), chat("x" * 5000), {"messages": []}):
            assert client.post(CHAT, json=body, headers=by(key)).status_code == 400
        assert client.get("/v1/usage", headers=by(key)).json()["data"] == []
        with client.stream("POST", CHAT, json=LONG, headers=by(key)) as reply:
            next(reply.iter_lines())
        until(lambda: not engine.live and not server.state.admission.active)
        (row,) = client.get("/v1/usage", headers=by(key)).json()["data"]
        assert row["prompt_tokens"] == len(engine.seen[-1].tokens) and 0 <= row["output_tokens"] < 2000
        assert not server.state.ledger._held


def test_tokens_of_a_day_are_an_end(tmp_path: Path) -> None:
    (key,) = many_keys(tmp_path, ["few"], tokens_per_day=150).values()
    with keyed(tmp_path) as (_, client):
        answers = [client.post(CHAT, json=chat("x", max_tokens=20), headers=by(key)) for _ in range(20)]
        codes = [each.status_code for each in answers]
        assert codes[0] == 200 and codes[-1] == 429 and codes == sorted(codes)
        refused = answers[-1]
        assert refused.json()["error"]["code"] == "tokens_per_day_exceeded"
        assert 0 < int(refused.headers["retry-after"]) <= DAY and refused.headers["x-should-retry"] == "false"
        used = client.get("/v1/usage", headers=by(key)).json()["tokens_today"]
        assert 150 <= used < 150 + 60, "no more than one request beyond"
        assert client.post("/v1/embeddings", json={"input": "x"}, headers=by(key)).status_code == 429
        assert client.post("/tokenize", json={"prompt": "x"}, headers=by(key)).status_code == 200
    with keyed(tmp_path) as (_, client):
        assert client.post(CHAT, json=chat("x"), headers=by(key)).status_code == 429, "also after a restart"


def test_requests_at_once_cannot_use_what_one_has_left(tmp_path: Path) -> None:
    """Each may become 2,000 tokens long, and the key has 3,000."""
    (key,) = many_keys(tmp_path, ["few"], tokens_per_day=3000).values()
    engine = ScriptedEngine(context_size=4096)
    with keyed(tmp_path, engine) as (server, client):
        codes: list[int] = []

        def ask() -> None:
            with httpx.stream("POST", f"{server.address}{CHAT}", json=LONG, headers=by(key), timeout=30) as reply:
                codes.append(reply.status_code)
                if reply.status_code == 200:
                    until(lambda: len(codes) == 8)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(codes) == [200, 200, 429, 429, 429, 429, 429, 429]
        until(lambda: not server.state.admission.active)
        held = client.post(CHAT, json=chat("x"), headers=by(key))
        assert held.status_code == 200, "what was held is free again"


# ---- the command --------------------------------------------------------------------------------------------


def counted(folder: Path, n: int = 3) -> None:
    """Usage of two keys, two models and some days."""
    many_keys(folder, ["ana", "ben"])
    now = [NOON]
    file = StateFile(folder)
    made = Ledger(file, lambda: now[0])
    for _ in range(n):
        made.count("ana", "large", Use(1, 10, 4, 5, 2, seconds=0.5))
        made.count("ana", "small, old", Use(2, 1, joules=1.5))
        made.count("ben", "large", Use(1, 100))
        now[0] += DAY
    made.flush()
    file.close()


def test_tables_of_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted(tmp_path)
    assert [(row["key"], row["prompt_tokens"], row["joules"]) for row in sums(tmp_path, capsys)] == [
        ("ana", 33, 4.5),
        ("ben", 300, None),
    ]
    days = sums(tmp_path, capsys, "--by", "day", "--since", "2027-01-16", "--until", "2027-01-16")
    assert [(row["day"], row["requests"]) for row in days] == [("2027-01-16", 4)]
    printed = shown(tmp_path, capsys, "--by", "key,model,day", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert len(rows) == 9 and list(rows[0]) == ["key", "model", "day", *FIELDS]
    assert {row["model"] for row in rows} == {"large", "small, old"}
    assert [row["joules"] for row in rows if row["model"] == "large"] == [""] * 6
    table = shown(tmp_path, capsys, "--by", "model,key").splitlines()
    assert table[0].split()[:3] == ["MODEL", "KEY", "REQUESTS"] and len(table) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--by", "key,owner"), "--by key,owner is not understood"),
        (("--by", "key,key"), "each once"),
        (("--by", "key; DROP TABLE usage"), "is not understood"),
        (("--since", "yesterday"), "--since yesterday is no day"),
        (("--until", "2026-13-01"), "is no day"),
    ],
)
def test_tables_that_cannot_be_made(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted(tmp_path, 1)
    assert main(["usage", "--state-dir", str(tmp_path), *options]) != 0
    assert said in capsys.readouterr().err


def test_a_ledger_that_was_edited_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted(tmp_path)
    changed(tmp_path, "UPDATE usage SET prompt_tokens = 'many', seconds = x'ff' WHERE key = 'ana'")
    changed(tmp_path, "INSERT INTO usage VALUES (x'00ff', 'never', 'm', 1, -5, 0, 0, 0, 0, 0, NULL)")
    assert len(sums(tmp_path, capsys)) == 3 and shown(tmp_path, capsys, "--by", "key,day", "--format", "csv")
    file = StateFile(tmp_path)
    made = Ledger(file, lambda: NOON)
    assert made.used_today(Account("ana")) == 5 and made.of(Account("ana"), "")
    file.close()


# ---- the ledger ---------------------------------------------------------------------------------------------


def test_a_day_ends_at_midnight_and_no_day_comes_twice() -> None:
    now = [NOON]
    made = Ledger(MemoryState(), lambda: now[0])
    made.count("few", "m", Use(1, 60, output_tokens=40))
    with pytest.raises(HttpError, match="43200 seconds"):
        made.hold(FEW, 1)
    now[0] -= DAY  # the clock is set back
    with pytest.raises(HttpError):
        made.hold(FEW, 1)
    made.count("few", "m", Use(1, 7))
    assert made.used_today(FEW) == 107 and [day for day, _ in made.of(FEW, "")] == ["2027-01-15"]
    now[0] += 2 * DAY
    made.hold(FEW, 1)
    assert made.used_today(FEW) == 0
    made.flush()
    now[0] -= 30 * DAY
    made.count("few", "m", Use(1, 1))
    assert [day for day, _ in made.of(FEW, "")] == ["2027-01-15", "2027-01-16"]


def test_what_is_held_is_given_back() -> None:
    made = Ledger(MemoryState(), lambda: NOON)
    made.hold(FEW, 60)
    made.hold(FEW, 60)
    with pytest.raises(HttpError, match="may use all that is left") as refused:
        made.hold(FEW, 60)
    assert refused.value.code == "tokens_per_day_held"
    made.release(FEW, 60)
    made.hold(FEW, 10)
    made.hold(Account("free"), 10**9)
    for account, n in ((FEW, 60), (FEW, 10), (Account("free"), 10**9)):
        made.release(account, n)
    assert not made._held


def test_a_full_disk_loses_no_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StateFile(tmp_path)
    made = Ledger(file, lambda: NOON)
    (n_pages,) = file.read("PRAGMA page_count")[0]
    file.read(f"PRAGMA max_page_count = {n_pages}")
    for i in range(300):
        made.count(f"key {i}", "m" * 200, Use(1, 1))
        made.flush()
    assert caplog.text.count("The usage cannot be written (the disk is full)") == 1
    assert made.of(Account("key 7"), "")[("2027-01-15", "m" * 200)].requests == 1, "it can be asked for meanwhile"
    file.read("PRAGMA max_page_count = 1000000")
    made.flush()
    assert file.read("SELECT count(*) < 100 FROM usage") == [(1,)], "not yet"
    monkeypatch.setattr(ledgers, "RETRY_S", 0.0)
    made.flush()
    made.flush()
    assert file.read("SELECT count(*), sum(requests) FROM usage") == [(300, 300)]
    file.close()


def test_a_program_that_holds_the_database_holds_up_no_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = StateFile(tmp_path)
    made = Ledger(file, lambda: NOON)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        made.count("few", "m", Use(1, 1))
        began = time.monotonic()
        made.flush()
        assert time.monotonic() - began < 0.7 and "another program" in caplog.text
    made.flush(at_once=True)
    assert file.read("SELECT requests FROM usage") == [(1,)]
    file.close()


def test_old_days_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MAX_DAYS", 5)
    now = [NOON]
    rows = MemoryState()
    made = Ledger(rows, lambda: now[0])
    for _ in range(9):
        made.count("a", "m", Use(1))
        made.count("b", "m", Use(1))
        made.flush()
        now[0] += DAY
    assert made.used_today(FEW) == 0
    kept = [day for (day,) in rows.read("SELECT DISTINCT day FROM usage ORDER BY day")]
    assert kept == [f"2027-01-{n}" for n in range(19, 24)]
    monkeypatch.setattr(ledgers, "MAX_ROWS", 4)
    Ledger(rows, lambda: now[0])
    assert [day for (day,) in rows.read("SELECT DISTINCT day FROM usage ORDER BY day")] == ["2027-01-22", "2027-01-23"]


def test_a_clock_that_was_years_ahead_once_costs_one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MAX_DAYS", 3)
    rows = MemoryState()
    for at in (NOON, NOON + 40_000 * DAY, NOON + DAY):
        made = Ledger(rows, lambda at=at: at)
        made.count("a", "m", Use(1))
        made.flush()
    assert len(made.of(Account("a"), "")) == 3


def test_recordings_have_seconds_and_no_tokens() -> None:
    made = Ledger(MemoryState(), lambda: NOON)
    made.recording_finished(RecordingRecord("whisper", 90.5, 4, 0, 2.25, "ana"))
    (use,) = made.of(Account("ana"), "").values()
    assert use == Use(1, audio_seconds=90.5, seconds=2.25) and made.used_today(Account("ana")) == 0


# ---- energy -------------------------------------------------------------------------------------------------


def test_all_that_was_counted_is_shared_out_once() -> None:
    shares: EnergyShares[str] = EnergyShares()
    use = EnergyUse("meter", 1.0)
    assert list(shares.share(replace(use, prefill_j=2.0, decode_j=4.0))) == [], "nobody has ended yet"
    shares.worked("ana", 30, 10)
    shares.worked("ben", 10, 30)
    assert shares.has_worked
    found = list(shares.share(replace(use, prefill_j=8.0, decode_j=16.0, idle_j=99.0)))
    assert found == [("ana", 6.0), ("ben", 2.0), ("ana", 4.0), ("ben", 12.0)] and not shares.has_worked
    shares.worked("ana", 1, 0)
    assert list(shares.share(replace(use, prefill_j=3.0, decode_j=1.0))) == [("ana", 3.0)], "the counter began anew"
    shares.worked("ben", 0, 1)
    assert list(shares.share(replace(use, prefill_j=3.0, decode_j=1.5))) == [("ben", 1.5)]


def test_joules_come_to_the_ledger(tmp_path: Path) -> None:
    keys = many_keys(tmp_path, ["ana", "ben"])
    engine = ScriptedEngine()
    engine.stats.energy = EnergyUse("meter", 1.0, prefill_j=3.0, decode_j=5.0, idle_j=7.0)
    with keyed(tmp_path, engine) as (_, client):

        def joules(name: str) -> float:
            data = client.get("/v1/usage", headers=by(keys[name])).json()["data"]
            return sum(row["joules"] or 0.0 for row in data)

        client.post(CHAT, json=chat("x"), headers=by(keys["ana"]))
        until(lambda: joules("ana") == 8.0)
        engine.stats.energy = replace(engine.stats.energy, decode_j=6.0)
        client.post(CHAT, json=chat("x"), headers=by(keys["ben"]))
        until(lambda: joules("ben") == 1.0)
        assert joules("ana") == 8.0
