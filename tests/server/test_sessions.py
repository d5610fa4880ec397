"""A server that remembers conversations: what is recalled, what is forgotten, and who never sees what."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from scripted_engine import TEMPLATE, ScriptedEngine, reply_to, serving
from tahr.errors import ConfigError
from tahr.server.lifecycle import HttpServer
from tahr.server.state.settings import Settings

CHAT = "/v1/chat/completions"


class Talk:
    """A server and the engine behind it; `say` sends one message."""

    def __init__(self, client: httpx.Client, engine: ScriptedEngine, server: HttpServer):
        self.client, self.engine, self.server = client, engine, server

    def say(self, text: str, session: str | None = None, key: str = "", **more: Any) -> str:
        """What the engine was asked in the end."""
        response = self.post(text, session, key, **more)
        assert response.status_code == 200, response.text
        return self.engine.seen[-1].text

    def post(self, text: str, session: str | None = None, key: str = "", **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        headers |= {} if session is None else {"x-tahr-session": session}
        messages = more.pop("messages", [{"role": "user", "content": text}])
        return self.client.post(CHAT, json={"messages": messages, "max_tokens": 40, **more}, headers=headers)

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0)


@contextmanager
def talking(context_size: int = 4096, template: str = TEMPLATE, **settings: Any) -> Iterator[Talk]:
    engine = ScriptedEngine(context_size=context_size, template=template)
    made = Settings(**{"port": 0, "log_interval_s": 0, "session_cache": "memory", **settings})
    with serving(engine, settings=made) as server, httpx.Client(base_url=server.address, timeout=20) as client:
        yield Talk(client, engine, server)


@pytest.mark.parametrize("stream", [False, True])
def test_the_second_turn_knows_the_first(stream: bool) -> None:
    with talking() as talk:
        first = talk.say("the word is plum", "a", stream=stream)
        second = talk.say("which word?", "a", stream=stream)
        third = talk.say("sure?", "a")
    reply = reply_to(first)
    head = second.removesuffix("[user]which word?\n[assistant]")
    assert head.startswith("[user]the word is plum\n[assistant]You said")
    assert reply.startswith(head.split("[assistant]")[1].strip())  # as far as 40 tokens went
    assert third.startswith(second) and third.endswith("[user]sure?\n[assistant]")


def test_sessions_do_not_know_each_other() -> None:
    with talking() as talk:
        talk.say("the word is plum", "a")
        assert "plum" not in talk.say("which word?", "b")
        assert "plum" not in talk.say("which word?")
        assert "plum" not in talk.say("which word?", "A")
        assert "plum" in talk.say("which word?", metadata={"session_id": " a\t"})  # trimmed


def test_a_session_belongs_to_its_key() -> None:
    with talking(api_keys=("one", "two")) as talk:
        talk.say("the word is plum", "a", "one")
        assert "plum" not in talk.say("which word?", "a", "two")
        assert "plum" in talk.say("which word?", "a", "one")


def test_many_sessions_at_once_stay_apart() -> None:
    def chat(number: int) -> None:
        for _ in range(4):
            assert talk.post(f"I am {number}.", f"s{number}").status_code == 200

    with talking() as talk:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(chat, range(16)))
        for number in range(16):
            requested = talk.say("who?", f"s{number}")
            assert requested.count(f"[user]I am {number}.") == 4
            assert requested.count("[user]") == 5


def test_off_means_stateless() -> None:
    with talking(session_cache="off") as talk:
        talk.say("the word is plum", "a", metadata={"session_id": 7})
        assert "plum" not in talk.say("which word?", "a")


def test_the_id_may_be_in_the_metadata() -> None:
    with talking() as talk:
        talk.say("the word is plum", metadata={"session_id": "a"})
        assert "plum" in talk.say("which word?", "a", metadata={"session_id": "a", "other": 1})
        assert "plum" not in talk.say("which word?", metadata={"session_id": "  "})


def test_the_session_unheard_for_longest_is_evicted() -> None:
    with talking(session_max_entries=2) as talk:
        for session in ("a", "b", "a", "c"):
            talk.say(f"I am {session}.", session)
        assert talk.metric("tahr_session_cache_entries") == 2
        assert talk.metric("tahr_session_cache_tokens") > 2 * len("I am c.")  # a letter is a token here
        assert talk.metric("tahr_session_cache_evictions_total") == 1
        assert "I am b" not in talk.say("who?", "b")  # which evicts a
        assert "I am c" in talk.say("who?", "c")
        assert talk.metric("tahr_session_cache_hits_total") == 2


def test_old_messages_are_dropped_to_the_budget() -> None:
    with talking(session_max_tokens=150) as talk:
        for number in range(9):
            requested = talk.say(f"number {number}", "a")
        assert talk.metric("tahr_session_cache_dropped_messages_total") > 0
    history = requested.removesuffix("[user]number 8\n[assistant]")
    assert history.startswith("[user]number ") and "number 7" in history and "number 0" not in history
    assert len(history.replace("[user]", "").replace("[assistant]", "").replace("\n", "").encode()) <= 150


def test_a_session_never_outgrows_the_context() -> None:
    with talking(context_size=256) as talk:
        for number in range(12):
            talk.say(f"number {number} and some more words", "a")


def test_instructions_stay_and_can_be_replaced() -> None:
    def with_system(text: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": text}, {"role": "user", "content": "go on"}]

    with talking(session_max_tokens=60) as talk:
        talk.say("", "a", messages=with_system("Be kind."))
        for _ in range(3):
            assert talk.say("more", "a").startswith("[system]Be kind.\n[user]")
        requested = talk.say("", "a", messages=with_system("Be brief."))
        assert requested.startswith("[system]Be brief.\n[user]") and "kind" not in requested


def test_a_turn_that_fails_is_not_remembered() -> None:
    with talking() as talk:
        talk.say("the word is plum", "a")
        assert talk.post("FAIL@3 fig", "a").status_code == 500
        assert "error" in talk.post("FAIL@3 fig", "a", stream=True).text
        requested = talk.say("which word?", "a")
    assert "plum" in requested and "fig" not in requested


@pytest.mark.parametrize(
    ("session", "more", "param"),
    [
        ("a", {"n": 2}, "n"),
        ("a", {"metadata": {"session_id": "b"}}, "metadata.session_id"),
        (None, {"metadata": {"session_id": 5}}, "metadata.session_id"),
        ("x" * 257, {}, "metadata.session_id"),
        ("a", {"messages": []}, "messages"),
    ],
)
def test_refusals(session: str | None, more: dict[str, Any], param: str) -> None:
    with talking() as talk:
        response = talk.post("hello", session, **more)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


def test_errors_number_the_messages_that_were_sent() -> None:
    with talking() as talk:
        talk.say("hello", "a")
        response = talk.post("", "a", messages=[{"role": "king", "content": "x"}])
    assert "messages[0].role" in response.json()["error"]["message"]


@pytest.mark.parametrize("wrong", [{"session_cache": "disk"}, {"session_max_entries": 0}, {"session_max_tokens": 0}])
def test_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Settings(**wrong)


def test_fields_no_template_reads_are_not_remembered() -> None:
    with talking() as talk:
        message = {"role": "assistant", "content": "hm", "annotations": ["x" * 100_000], "refusal": "y" * 100_000}
        talk.say("", "a", messages=[{"role": "user", "content": "hi"}, message, {"role": "user", "content": "go on"}])
        (stored,) = talk.server.state.sessions._entries.values()
        assert len(repr(stored)) < 2000 and len(stored) == 4
        assert talk.metric("tahr_session_cache_tokens") >= 4 * 8, "what a template adds is counted"


def test_short_turns_never_make_a_session_useless() -> None:
    with talking(context_size=200, session_max_tokens=100_000) as talk:
        for number in range(160):
            response = talk.post(f"{number}", "a", max_tokens=1)
            assert response.status_code == 200, (number, response.text)
        assert talk.metric("tahr_session_cache_dropped_messages_total") > 100


def test_a_template_that_adds_much_is_measured_not_guessed() -> None:
    template = "{% for m in messages %}" + "-" * 40 + "[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"
    with talking(context_size=400, template=template) as talk:
        for number in range(30):
            response = talk.post(f"{number}", "a", max_tokens=20)
            assert response.status_code == 200, (number, response.text)
        assert talk.engine.seen[-1].text.count("[user]") > 1, "as much is remembered as fits"


@pytest.mark.parametrize("stream", [False, True])
def test_a_buffered_reply_that_is_cut_is_not_remembered(stream: bool) -> None:
    with talking() as talk:
        cut = talk.post("one", "a", guided_regex=".*", buffer=True, max_tokens=3, stream=stream)
        assert cut.status_code == (200 if stream else 500) and "incomplete_reply" in cut.text
        assert "You said" not in talk.say("two", "a")
        talk.say("three", "a", guided_regex=".*", buffer=True, max_tokens=400, stream=stream)
        assert "You said" in talk.say("four", "a")
