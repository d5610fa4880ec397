"""Files and batches, by openai's client and by plain requests: what they give, whom they belong to, how they end."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import openai
import pytest

from batch_server import BODIES, CHAT, RESPONSES, TEXT, Served, line, lines_of, served
from keyed_server import new_key
from pooled_server import pooled, until
from scripted_engine import ScriptedEngine, serving
from tahr.server.kept.batch_store import BatchStore
from tahr.server.kept.file_store import FileStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def server(folder: Path) -> Iterator[Served]:
    with served(folder) as made:
        yield made


# ---- files ----------------------------------------------------------------------------------------------------


def test_the_life_of_a_file(server: Served, folder: Path) -> None:
    content = "".join(line(f"r{i}") for i in range(30_000))  # more than one piece
    made = server.client.files.create(file=("in.jsonl", content.encode()), purpose="batch")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(content), "in.jsonl", "batch")
    assert made.expires_at and 29 * 86_400 < made.expires_at - time.time() <= 30 * 86_400
    assert server.client.files.retrieve(made.id) == made
    assert server.client.files.content(made.id).text == content
    assert [each.id for each in server.client.files.list()] == [made.id]
    for path in (folder / "files").iterdir():
        assert path.stat().st_mode & 0o077 == 0 == (folder / "files").stat().st_mode & 0o077
    for call in (server.other.files.retrieve, server.other.files.content, server.other.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    assert not server.other.files.list().data
    assert server.http.head(f"/v1/files/{made.id}/content").headers["content-length"] == str(len(content))
    assert server.client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        server.client.files.content(made.id)
    assert not list((folder / "files").iterdir())


def test_pages_of_files(server: Served) -> None:
    ids = [server.upload(line(str(i)), name=f"{i}.jsonl") for i in range(5)]
    assert {each.id for each in server.client.files.list(limit=2)} == set(ids)
    listed = server.client.files.list(limit=2, order="asc")
    assert len(listed.data) == 2 and listed.has_more
    assert len(server.client.files.list(purpose="batch_output").data) == 0
    assert server.http.get("/v1/files", params={"limit": 0}).status_code == 400
    assert server.http.get("/v1/files", params={"after": "file-x"}).status_code == 400


def test_a_file_is_kept_as_long_as_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(folder) as server:
        expiry: Any = {"anchor": "created_at", "seconds": 3600}
        made = server.client.files.create(file=b"x", purpose="batch", expires_after=expiry)
        assert made.expires_at == made.created_at + 3600
        expiry["seconds"] = 3599
        with pytest.raises(openai.BadRequestError, match="expires_after"):
            server.client.files.create(file=b"x", purpose="batch", expires_after=expiry)
        kept = server.upload(line("a"))
    monkeypatch.setattr(FileStore.__init__, "__defaults__", (lambda: made.created_at + 3601,))
    with served(folder) as server:
        assert [each.id for each in server.client.files.list()] == [kept]


def test_without_a_state_dir_there_is_a_sentence(tmp_path: Path) -> None:
    with serving(ScriptedEngine()) as running, httpx.Client(base_url=running.address) as client:
        for method, path in (
            *(("POST", "/v1/files"), ("GET", "/v1/files"), ("GET", "/v1/files/file-1"), ("DELETE", "/v1/files/x")),
            *(("GET", "/v1/files/x/content"), ("POST", "/v1/batches"), ("GET", "/v1/batches")),
            *(("GET", "/v1/batches/x"), ("POST", "/v1/batches/x/cancel")),
        ):
            refused = client.request(method, path)
            assert refused.status_code == 400 and "--state-dir" in refused.json()["error"]["message"], path


# ---- batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", BODIES)
def test_every_endpoint(server: Served, endpoint: str) -> None:
    bad = line("bad", endpoint, nonsense=1)
    batch = server.ended(line("a", endpoint), bad, line("b", endpoint), endpoint=endpoint)
    assert batch.status == "completed" and batch.completed_at and batch.in_progress_at and not batch.errors
    counts = batch.request_counts
    assert counts and (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    replies = server.content(batch.output_file_id)
    assert set(replies) == {"a", "b"}
    alone = server.http.post(endpoint, json=BODIES[endpoint]).json()
    said = replies["a"]["response"]["body"]
    assert said["object"] == alone["object"] and said.get("choices", said.get("data")) == alone.get(
        "choices", alone.get("data")
    )
    errors = server.content(batch.error_file_id)
    assert errors["bad"]["response"]["status_code"] == 400 and errors["bad"]["response"]["body"]["error"]["param"]
    about = server.client.files.retrieve(batch.output_file_id or "")
    assert about.purpose == "batch_output" and about.filename == f"{batch.id}_output.jsonl"


def test_responses_of_a_batch_are_not_stored(server: Served) -> None:
    batch = server.ended(line("a", RESPONSES), endpoint=RESPONSES)
    said = server.content(batch.output_file_id)["a"]["response"]["body"]
    assert said["store"] is False
    assert server.http.get("/v1/responses").json()["data"] == []


def test_a_conversation_goes_on_in_a_batch(server: Served) -> None:
    """What is stored belongs to the key whose batch it is."""
    first = server.http.post(RESPONSES, json={"input": "one"}).json()["id"]
    batch = server.ended(line("a", RESPONSES, input="two", previous_response_id=first), endpoint=RESPONSES)
    assert batch.request_counts and batch.request_counts.completed == 1, server.content(batch.error_file_id)


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ([""], ["empty_file"]),
        ([line("a"), "no JSON\n", line("a"), line("b")], ["invalid_line", "duplicate_custom_id"]),
        ([line("a"), line("b", CHAT)], ["mismatched_url"]),
        ([line("a", "/v1/models", x=1)], ["invalid_url"]),
        ([line("a", method="GET")], ["invalid_method"]),
        ([line("a", prompt="x", stream=True)], ["stream_unsupported"]),
        ([line("a", prompt="x", model="nobody")], ["model_not_found"]),
        ([line("a", prompt="x", model=7)], ["invalid_body"]),
        ([line("a") + "x" * (11 * 2**20) + "\n"], ["line_too_long"]),
        (["\n"] * 150, ["empty_file"]),
        (["x\n"] * 150, ["invalid_line"] * 100),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_answered(folder: Path, lines: list[str], codes: list[str]) -> None:
    engine = ScriptedEngine()
    with served(folder, engine) as server:
        batch = server.ended(*lines)
        assert batch.status == "failed" and batch.failed_at and not batch.output_file_id and len(engine.seen) == 1, (
            "warmed alone"
        )
        found = batch.errors and batch.errors.data
        assert found and [each.code for each in found] == codes
        assert all(each.message and each.message.endswith((".", ")")) for each in found)


def test_bodies_that_make_no_batch(server: Served) -> None:
    file_id = server.upload(line("a"))
    good = {"input_file_id": file_id, "endpoint": TEXT, "completion_window": "24h"}
    for change, param in (
        ({"input_file_id": "file-none"}, "id"),
        ({"input_file_id": "../../etc/passwd"}, "id"),
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"x": "y" * 513}}, "metadata[...]"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"stream": True}, "stream"),
    ):
        refused = server.http.post("/v1/batches", json={**good, **change})
        assert refused.status_code in (400, 404) and refused.json()["error"]["param"] == param, refused.text
    with pytest.raises(openai.NotFoundError):
        server.other.batches.create(input_file_id=file_id, endpoint=TEXT, completion_window="24h")


def test_whose_batches_they_are(server: Served) -> None:
    batch = server.ended(line("a"))
    assert [each.id for each in server.client.batches.list()] == [batch.id]
    assert not server.other.batches.list().data
    for call in (server.other.batches.retrieve, server.other.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            call(batch.id)
    with pytest.raises(openai.NotFoundError):
        server.other.files.content(batch.output_file_id or "")
    with pytest.raises(openai.ConflictError):
        server.client.batches.cancel(batch.id)
    with pytest.raises(openai.BadRequestError, match="has results of a batch"):
        server.client.batches.create(input_file_id=batch.output_file_id or "", endpoint=TEXT, completion_window="24h")


def test_a_cancelled_batch_keeps_what_is_answered(folder: Path) -> None:
    engine = ScriptedEngine()
    with served(folder, engine) as server:
        batch = server.begin(line("a"), line("b"), line("stuck", prompt="HANG@1"), line("too", prompt="HANG@2 too"))
        while server.client.batches.retrieve(batch.id).request_counts.completed < 2:  # type: ignore[union-attr]
            time.sleep(0.01)
        with pytest.raises(openai.ConflictError, match="still needs this file"):
            server.client.files.delete(batch.input_file_id)
        assert server.client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        ended = server.until(batch.id, "cancelled")
        assert ended.cancelling_at and ended.cancelled_at and not ended.error_file_id
        assert set(server.content(ended.output_file_id)) == {"a", "b"}
        assert not engine.live, "the engine still works on it"
        assert server.client.files.delete(batch.input_file_id).deleted


def test_a_batch_whose_time_is_over_says_so_of_each_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(folder) as server:
        batch = server.begin(line("a"), line("stuck", prompt="HANG@1"))
        while server.client.batches.retrieve(batch.id).request_counts.completed < 1:  # type: ignore[union-attr]
            time.sleep(0.01)
    late = time.time() + 90_000
    monkeypatch.setattr(BatchStore.__init__, "__defaults__", (lambda: late,))
    with served(folder) as server:
        ended = server.until(batch.id, "expired")
        assert set(server.content(ended.output_file_id)) == {"a"} and ended.expired_at
        errors = server.content(ended.error_file_id)
        assert errors["stuck"]["error"]["code"] == "batch_expired" and errors["stuck"]["response"] is None


def test_a_server_that_ends_leaves_the_rest_to_the_next(folder: Path) -> None:
    with served(folder) as server:
        batch = server.begin(*(line(f"r{i}") for i in range(6)), line("slow", prompt="HANG@3"))
        while server.client.batches.retrieve(batch.id).request_counts.completed < 6:  # type: ignore[union-attr]
            time.sleep(0.01)
    engine = ScriptedEngine()
    engine.obeys_words = False
    with served(folder, engine) as server:
        ended = server.until(batch.id, "completed")
        assert set(server.content(ended.output_file_id)) == {"slow", *(f"r{i}" for i in range(6))}
        assert len(engine.seen) == 2, "besides warming, lines were answered again"
        assert ended.request_counts and ended.request_counts.completed == 7


# ---- beside clients -------------------------------------------------------------------------------------------


def test_a_batch_takes_no_clients_place(folder: Path) -> None:
    """One request may be in flight, and a batch has several that never end."""
    engine = ScriptedEngine()
    with served(folder, engine, max_requests=1, rate_limit=4) as server:
        file_id = server.upload(*(line(f"r{i}", prompt=f"HANG@1 {i}") for i in range(5)))
        server.client.batches.create(input_file_id=file_id, endpoint=TEXT, completion_window="24h")
        while len(engine.live) < 4:
            time.sleep(0.01)
        assert server.http.post(TEXT, json={"prompt": "x"}).status_code == 200
        assert server.http.post(TEXT, json={"prompt": "x"}).status_code == 200, "lines do not count"
        assert server.http.post(TEXT, json={"prompt": "x"}).status_code == 429, "requests do"


def test_requests_of_a_batch_are_in_the_background(folder: Path) -> None:
    engine = ScriptedEngine()
    with served(folder, engine) as server:
        server.ended(line("a"))
        server.http.post(TEXT, json={"prompt": "x"})
        assert [each.background for each in engine.seen[1:]] == [True, False]


def test_a_batch_loads_no_model_while_clients_wait_for_another(folder: Path) -> None:
    """There is memory for one of them: the client's stays, and the batch goes on when nobody needs it."""
    with pooled(budget=1000, state_dir=str(folder)) as pool:
        server = Served(pool.server.address)
        stuck = Thread(target=pool.ask, args=("a", "SLOW hello"))
        stuck.start()
        until(lambda: bool(pool.loaders["a"].engines[0].live))
        batch = server.begin(line("x", prompt="hi", model="b"))
        server.until(batch.id, "in_progress")
        assert pool.states()["a"] == "loaded" and not pool.loaders["b"].engines
        stuck.join()
        assert server.until(batch.id, "completed").request_counts.completed == 1  # type: ignore[union-attr]


def test_a_line_that_uses_a_model_lets_it_go_for_a_client(folder: Path) -> None:
    with pooled(budget=1000, state_dir=str(folder)) as pool:
        server = Served(pool.server.address)
        batch = server.begin(line("x", prompt="HANG@1", model="a"))
        until(lambda: bool(pool.loaders["a"].engines[0].live))
        assert pool.ask("b").status_code == 200, "it would wait for the line forever"
        assert server.client.batches.retrieve(batch.id).status == "in_progress"
        until(lambda: len(pool.loaders["a"].engines) == 2)  # the line is asked for again
        assert server.client.batches.cancel(batch.id)
        server.until(batch.id, "cancelled")


def test_keys_take_turns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches one key has, another one's is begun with the second place."""
    with served(folder) as server:
        for i in range(3):
            server.begin(line("stuck", prompt=f"HANG@1 {i}"))
        server.client.api_key = "two"
        batch = server.begin(line("a"))
        waiting = server.client.batches.retrieve(batch.id)
        assert waiting.status == "validating", "both places are taken"
        server.client.api_key = "one"
        first = server.client.batches.list().data
        server.client.batches.cancel(first[-1].id)
        server.client.api_key = "two"
        assert server.until(batch.id, "completed")


def test_a_key_that_is_taken_away_ends_its_batches(folder: Path) -> None:
    with served(folder) as server:
        batch = server.begin(line("a"), line("stuck", prompt="HANG@1"))
        while server.client.batches.retrieve(batch.id).request_counts.completed < 1:  # type: ignore[union-attr]
            time.sleep(0.01)
    engine = ScriptedEngine()
    record = folder / "batches" / f"{batch.id}.json"
    with served(folder, engine, api_keys=("two",)):
        until(lambda: json.loads(record.read_text())["status"] == "failed")
        assert json.loads(record.read_text())["errors"][0]["code"] == "key_revoked" and len(engine.seen) == 1
    with served(folder) as server:
        ended = server.client.batches.retrieve(batch.id)
        assert ended.status == "failed" and set(server.content(ended.output_file_id)) == {"a"}


def test_a_model_that_a_key_is_not_good_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = new_key(folder, "ci", capsys, "--models", "other")
    with served(folder) as server:
        server.client.api_key = key
        ended = server.ended(line("a"))
        assert ended.status == "failed" and ended.errors and ended.errors.data
        assert ended.errors.data[0].code == "model_not_allowed"


def test_lines_wait_for_tokens_of_their_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = new_key(folder, "ci", capsys, "--tokens-per-day", "1")
    with served(folder) as server:
        server.client.api_key = key
        batch = server.begin(line("a"), line("b"), line("c"))
        while server.client.batches.retrieve(batch.id).request_counts.completed < 1:  # type: ignore[union-attr]
            time.sleep(0.01)
        time.sleep(1.5)  # the others have asked again
        waiting = server.client.batches.retrieve(batch.id)
        counts = waiting.request_counts
        assert waiting.status == "in_progress" and counts and (counts.completed, counts.failed) == (1, 0)
        server.client.batches.cancel(batch.id)
        server.until(batch.id, "cancelled")


def test_async_client(server: Served) -> None:
    """The calls of openai's other client are the same."""

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="one") as client:
            sent = await client.files.create(file=("in.jsonl", line("a").encode()), purpose="batch")
            batch = await client.batches.create(
                input_file_id=sent.id, endpoint=TEXT, completion_window="24h", metadata={"of": "a test"}
            )
            while (batch := await client.batches.retrieve(batch.id)).status != "completed":
                await asyncio.sleep(0.01)
            assert batch.metadata == {"of": "a test"}
            content = await client.files.content(batch.output_file_id or "")
            assert set(lines_of(content.text)) == {"a"}
            assert [each.id async for each in client.batches.list(limit=1)] == [batch.id]

    asyncio.run(main())
