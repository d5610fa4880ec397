"""Batches of keys that have a limit on the tokens of a day."""

import time
from pathlib import Path

import pytest

from batch_server import Served, line
from keyed_server import keyed, many_keys
from scripted_engine import ScriptedEngine
from tahr.server.batches import service


def test_batches_of_keys_without_tokens_leave_their_places_until_tomorrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of their lines asked again every second, and they held both places that batches have."""
    monkeypatch.setattr(service, "LOOK_S", 0.05)
    poor = many_keys(tmp_path, ["poor", "poorer"], tokens_per_day=3)
    rich = many_keys(tmp_path, ["rich"])["rich"]
    engine = ScriptedEngine(context_size=4096)
    with keyed(tmp_path, engine) as (server, _):
        clients = {name: Served(server.address) for name in ("poor", "poorer", "rich")}
        for name, key in [*poor.items(), ("rich", rich)]:
            clients[name].client = clients[name].client.with_options(api_key=key)
        lines = [line(str(i), prompt="hello") for i in range(8)]
        waiting = {name: clients[name].begin(*lines).id for name in poor}
        for name, id in waiting.items():
            while clients[name].until(id, "in_progress").request_counts.completed == 0:  # type: ignore[union-attr]
                time.sleep(0.01)
        begun = clients["rich"].begin(*lines)
        assert clients["rich"].until(begun.id, "completed").request_counts.completed == 8  # type: ignore[union-attr]
        n_asked = len(engine.seen)
        for name, id in waiting.items():
            found = clients[name].client.batches.retrieve(id)
            assert found.status == "in_progress" and found.request_counts.completed < 8  # type: ignore[union-attr]
        ledger = server.state.admission.ledger
        days = iter(range(1, 1000))
        while any(clients[name].client.batches.retrieve(id).status != "completed" for name, id in waiting.items()):
            ahead_s = 86_400.0 * next(days)
            ledger._clock = lambda ahead_s=ahead_s: time.time() + ahead_s  # type: ignore[misc]
            time.sleep(0.2)
        assert len(engine.seen) > n_asked
        for name, id in waiting.items():
            done = clients[name].client.batches.retrieve(id)
            assert len(clients[name].content(done.output_file_id)) == 8 and not done.error_file_id


def test_a_batch_whose_key_has_no_tokens_left_can_be_cancelled(tmp_path: Path) -> None:
    key = many_keys(tmp_path, ["poor"], tokens_per_day=3)["poor"]
    with keyed(tmp_path) as (server, _):
        served = Served(server.address)
        served.client = served.client.with_options(api_key=key)
        id = served.begin(*[line(str(i), prompt="hello") for i in range(8)]).id
        while served.until(id, "in_progress").request_counts.completed == 0:  # type: ignore[union-attr]
            time.sleep(0.01)
        served.client.batches.cancel(id)
        assert served.until(id, "cancelled").request_counts.failed == 0  # type: ignore[union-attr]
