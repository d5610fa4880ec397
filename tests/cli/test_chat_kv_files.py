"""`/save --kv` and `/load`: a conversation goes on without its prefill, with the same reply; tampering is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tahr import LLM, SamplingParams
from tahr.cli.chat.chat_files import kv_file
from tahr.cli.chat.commands import obey
from tahr.cli.chat.conversation import Conversation
from tahr.cli.chat.prefix_files import PrefixFiles
from tahr.errors import ConfigError

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
GREEDY = SamplingParams(temperature=0, max_tokens=24)


class Silence:
    """Keeps completions and shows nothing."""

    def __init__(self) -> None:
        self.completions: list[Any] = []

    def done(self, completion: Any) -> None:
        self.completions.append(completion)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def talk(stories: Path, tmp_path: Path) -> Any:
    """A function that makes a conversation with a fresh model, whose prefix cache is empty."""
    (tmp_path / "template.jinja").write_text(TEMPLATE)

    def made(fingerprint: str = "weights", **settings: Any) -> Conversation:
        llm = LLM(str(stories), chat_template=str(tmp_path / "template.jinja"), n_threads=1, **settings)
        return Conversation(llm, Silence(), GREEDY, prefix_files=PrefixFiles(llm, lambda: fingerprint))

    return made


@pytest.fixture
def saved(talk: Any, tmp_path: Path) -> tuple[Path, Conversation]:
    first = talk()
    first.reply("Once upon a time there was a small dog who liked to play with a big red ball in the park.")
    obey(first, f"/save --kv {tmp_path / 'talk.json'}")
    return tmp_path / "talk.json", first


def cached_in_next_reply(talk: Conversation) -> tuple[int, str]:
    talk.reply("Then")
    made = talk.output.completions[-1]  # type: ignore[attr-defined]
    return made.n_cached_tokens, made.text


def test_a_conversation_goes_on_without_its_prefill(talk: Any, saved: tuple[Path, Conversation]) -> None:
    path, first = saved
    second, third = talk(), talk()
    obey(second, f"/load {path}")
    n_cached, text = cached_in_next_reply(second)
    assert n_cached >= 32
    kv_file(path).unlink()
    obey(third, f"/load {path}")
    assert cached_in_next_reply(third) == (0, text), "the same reply, computed from the start"
    assert cached_in_next_reply(first)[1] == text
    for each in (first, second):
        (pool,) = each.llm.engine.scheduler.prefix.pools
        pool.check([])  # nothing is held any more


@pytest.mark.parametrize("command", ["/save {} --kv", "/save --kv {}"])
@pytest.mark.parametrize("name", ["talk", "talk.kv"])
def test_the_option_stands_anywhere_and_a_name_may_be_that_of_either_file(
    talk: Any, tmp_path: Path, command: str, name: str
) -> None:
    made = talk()
    made.reply("Once upon a time")
    obey(made, command.format(tmp_path / name))
    assert {path.name for path in tmp_path.iterdir()} == {"talk", "talk.kv", "template.jinja"}
    again = talk()
    obey(again, f"/load {tmp_path / name}")
    assert again.messages == made.messages


def test_a_conversation_alone_may_have_any_name(talk: Any, tmp_path: Path) -> None:
    made = talk()
    made.reply("Once upon a time")
    obey(made, f"/save {tmp_path / 'alone.kv'}")
    again = talk()
    obey(again, f"/load {tmp_path / 'alone.kv'}")
    assert again.messages == made.messages


def test_without_kv_there_is_one_file(talk: Any, tmp_path: Path) -> None:
    made = talk()
    made.reply("Once upon a time")
    obey(made, f"/save {tmp_path / 'plain.json'}")
    assert not kv_file(tmp_path / "plain.json").exists()
    assert "kv_sha256" not in json.loads((tmp_path / "plain.json").read_text())


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_changed_file_is_refused(talk: Any, saved: tuple[Path, Conversation], at: int) -> None:
    path, _ = saved
    data = bytearray(kv_file(path).read_bytes())
    data[at] ^= 1
    kv_file(path).write_bytes(bytes(data))
    second = talk()
    with pytest.raises(ConfigError, match="its digest differs"):
        obey(second, f"/load {path}")
    assert second.messages == []


def test_other_weights_only_cost_the_prefill(
    talk: Any, saved: tuple[Path, Conversation], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = saved
    for other in (talk(fingerprint="others"), talk(kv_dtype="f32"), talk(prefix_cache=False)):
        obey(other, f"/load {path}")
        assert "The text is computed again" in capsys.readouterr().err and len(other.messages) == 2
        assert cached_in_next_reply(other)[0] == 0


def test_a_file_larger_than_the_model_can_hold_is_not_read(talk: Any, saved: tuple[Path, Conversation]) -> None:
    path, _ = saved
    with kv_file(path).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="larger than the keys and values"):
        obey(talk(), f"/load {path}")


def test_a_server_keeps_them_itself(talk: Any, tmp_path: Path) -> None:
    remote = talk()
    remote.prefix_files = None
    with pytest.raises(ConfigError, match="in this process"):
        obey(remote, f"/save --kv {tmp_path / 'x.json'}")
