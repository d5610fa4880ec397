"""The chat with a scripted model; `test_repl_terminal` has the program in a terminal."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import assets
from tahr import Chunk, Completion, SamplingParams
from tahr.cli.chat import chat_files as saved
from tahr.cli.chat.commands import Leave, obey
from tahr.cli.chat.conversation import Conversation
from tahr.cli.chat.repl import Script, read_message, repl
from tahr.cli.terminal.console import JsonlOutput, TextOutput
from tahr.engine.sequences.stats import RequestStats
from tahr.errors import ConfigError, GenerateError, TemplateError
from tahr.text.replies.deltas import Delta, ReasoningDelta, ToolCallDelta, text_of, tool_calls_of

ROOT = Path(__file__).parents[2]
STORIES = assets.stories()
DEFAULTS = SamplingParams(temperature=0.5, top_k=20, top_p=0.9, min_p=0.0, repetition_penalty=1.0, max_tokens=64)


class ScriptedLLM:
    """Answers "1st", "2nd", ... word by word; a word is a token. Remembers what it was asked."""

    name = "scripted"
    backend_summary = "paper"
    sampling_defaults = DEFAULTS

    def __init__(self, context_size: int = 1000, template: object | None = object()):
        self.context_size = context_size
        self.template = template
        self.requested: list[list[dict[str, Any]]] = []
        self.params: list[SamplingParams] = []
        self.on_chunk: Callable[[], None] = lambda: None

    def encode_chat(self, messages: list[dict[str, Any]], **variables: Any) -> list[int]:
        return [0] * sum(len(message["content"].split()) for message in messages)

    def stream(self, prompt: str, params: SamplingParams) -> Iterator[Chunk]:
        return self.stream_chat([{"role": "raw", "content": prompt}], params)

    def stream_chat(self, messages: list[dict[str, Any]], params: SamplingParams, **variables: Any) -> Iterator[Chunk]:
        n_prompt = len(self.encode_chat(messages))
        if n_prompt >= self.context_size:
            raise ConfigError("The prompt does not fit.")
        self.requested.append(list(messages))
        self.params.append(params)
        words = [f"reply {len(self.requested)}", " is", " this"]
        return self._say(words, n_prompt)

    def _say(self, words: list[str], n_prompt: int) -> Iterator[Chunk]:
        for i, word in enumerate(words):
            self.on_chunk()
            last = i == len(words) - 1
            done = Completion(
                "".join(words),
                list(range(len(words))),
                n_prompt,
                0,
                "stop",
                RequestStats(n_generated_tokens=len(words)),
            )
            yield Chunk((word,), [i], "stop" if last else None, done if last else None)


@pytest.fixture
def llm() -> ScriptedLLM:
    return ScriptedLLM()


@pytest.fixture
def talk(llm: ScriptedLLM) -> Conversation:
    return Conversation(llm, TextOutput(stats=False))  # type: ignore[arg-type]


def lines(*typed: str) -> Script:
    """Types these lines and then ends the input."""
    left = iter(typed)

    def ask(prompt: str) -> str:
        for line in left:
            return line
        raise EOFError

    return Script(ask)


class Pasted(Script):
    """The same, where some lines come together with the line before."""

    def __init__(self, typed: list[str], together: list[bool]):
        super().__init__(lines(*typed).ask)
        self._together = iter(together)

    def has_more(self) -> bool:
        return next(self._together, False)


# ---- messages of several lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hello"], "hello"),
        (['"""', "a", "b", '"""'], "a\nb"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""only one line"""'], "only one line"),
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (['"""', "never closed"], "never closed"),
        (["a\\"], "a\n"),
    ],
)
def test_read_message(typed: list[str], message: str) -> None:
    assert read_message(lines(*typed)) == message


@pytest.mark.parametrize(
    ("typed", "together", "messages"),
    [
        (["a", "b", "c", "d"], [True, True, False], ["a\nb\nc", "d"]),
        (["/one", "b", "c"], [True], ["/one", "b\nc"]),
        (["a\\", "b", "c"], [True], ["a\nb\nc"]),
        (["a", "", "b\nc\n"], [True, True], ["a\n\nb\nc\n"]),
        (["readline pasted\nthis\n"], [], ["readline pasted\nthis"]),
        (["a"], [True] * 9, ["a\n"]),
    ],
)
def test_lines_pasted_together_are_one_message(typed: list[str], together: list[bool], messages: list[str]) -> None:
    source = Pasted(typed, together)
    assert [read_message(source) for _ in messages] == messages


def test_what_is_pasted_is_no_command(talk: Conversation, llm: ScriptedLLM) -> None:
    repl(talk, lines("/usr/bin/python\n// a comment", "/clear"))
    assert [message["content"] for message in llm.requested[0]] == ["/usr/bin/python\n// a comment"]


# ---- turns --------------------------------------------------------------------------------------------------------


def test_turns_are_remembered_and_only_replies_reach_stdout(
    talk: Conversation, llm: ScriptedLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    repl(talk, lines("one", "", "/set", "two"))
    assert capsys.readouterr().out == "reply 1 is this\nreply 2 is this\n"
    assert [message["content"] for message in llm.requested[1]] == ["one", "reply 1 is this", "two"]


@pytest.mark.parametrize("word", ["/bye", "/quit", "/exit", "exit", "quit", " quit "])
def test_every_way_out(talk: Conversation, llm: ScriptedLLM, word: str) -> None:
    repl(talk, lines(word, "not reached"))
    assert llm.requested == []


def test_an_error_ends_the_turn_and_not_the_talk(
    talk: Conversation, llm: ScriptedLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        llm.on_chunk = lambda: None
        raise GenerateError("Something broke.")

    llm.on_chunk = fail
    repl(talk, lines("one", "two"))
    assert "error: Something broke." in capsys.readouterr().err
    assert [message["content"] for message in llm.requested[1]] == ["two"]


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started with it ignored, as a shell does behind `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_stops_the_reply_and_keeps_what_was_said(
    talk: Conversation, llm: ScriptedLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.on_chunk = lambda: signal.raise_signal(signal.SIGINT)
    assert talk.reply("one") is False
    assert talk.messages == [{"role": "user", "content": "one"}, {"role": "assistant", "content": "reply 1"}]
    assert capsys.readouterr() == ("reply 1\n", "[stopped after 1 token]\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interrupts")
def test_a_second_ctrl_c_raises(talk: Conversation, llm: ScriptedLLM) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    llm.on_chunk = twice
    with pytest.raises(KeyboardInterrupt):
        talk.reply("one")
    assert talk.messages == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_at_the_prompt_gives_a_hint(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([KeyboardInterrupt, EOFError])

    def ask(prompt: str) -> str:
        raise next(answers)

    repl(talk, Script(ask))
    assert "Ctrl-D" in capsys.readouterr().err


def test_oldest_turns_are_dropped_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    llm = ScriptedLLM(context_size=20)
    talk = Conversation(llm, TextOutput(stats=False))  # type: ignore[arg-type]
    talk.system = "be brief"
    for text in ("a a a", "b b b", "c c c"):
        talk.reply(text)
    assert [message["content"] for message in llm.requested[2]] == ["be brief", "b b b", "reply 2 is this", "c c c"]
    assert "The oldest turn was dropped" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        talk.reply("long " * 20)
    assert talk.messages[-1]["content"] == "reply 3 is this"


def test_without_a_template_only_raw_works(llm: ScriptedLLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.template = None
    with pytest.raises(TemplateError, match="--raw"):
        Conversation(llm, TextOutput(stats=False))  # type: ignore[arg-type]
    talk = Conversation(llm, TextOutput(stats=False), raw=True)  # type: ignore[arg-type]
    repl(talk, lines("one", "/system x", "two"))
    assert [requested[0]["content"] for requested in llm.requested] == ["one", "two"]
    assert "no system prompt" in capsys.readouterr().err


# ---- commands -----------------------------------------------------------------------------------------------------


def test_set_changes_checks_and_gives_back(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    obey(talk, "/set temperature 0.25")
    assert talk.sampling.temperature == 0.25
    obey(talk, "/set repeat-penalty 1.5")
    assert talk.requested.repetition_penalty == 1.5
    obey(talk, "/set stop END")
    assert talk.requested.stop == ("END",)
    obey(talk, "/set temp default")
    assert talk.sampling.temperature == DEFAULTS.temperature
    assert "temperature 0.5, top_k 20" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["temperature -1", "top_k many", "top_p 2", "colour red", "seed", "max_tokens 0"])
def test_set_refuses(talk: Conversation, wrong: str) -> None:
    with pytest.raises(ConfigError):
        obey(talk, f"/set {wrong}")
    assert talk.requested == SamplingParams()


def test_clear_keeps_the_system_prompt(talk: Conversation) -> None:
    obey(talk, "/system Speak like a goat.")
    talk.reply("one")
    obey(talk, "/clear")
    assert talk.messages == [{"role": "system", "content": "Speak like a goat."}]


@pytest.mark.parametrize("wrong", ["/hlep", "/nonsense", "/clear now", "/save", "/load", "/load /nowhere/at/all"])
def test_wrong_commands_are_refused(talk: Conversation, wrong: str) -> None:
    with pytest.raises(ConfigError):
        obey(talk, wrong)


def test_help_names_every_command(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    obey(talk, "/help")
    shown = capsys.readouterr().err
    for name in ("/help", "/clear", "/reset", "/system", "/set", "/save", "/load", "/bye", "/quit", "/exit"):
        assert name in shown


def test_leaving_is_an_exception(talk: Conversation) -> None:
    with pytest.raises(Leave):
        obey(talk, "/bye")


# ---- saved conversations ------------------------------------------------------------------------------------------


def test_save_and_load_round_trip(talk: Conversation, llm: ScriptedLLM, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    talk.system, talk.requested = "be brief", SamplingParams(temperature=0.0, top_k=0, seed=7, stop=("a", "b"))
    talk.reply("größer?")
    obey(talk, f"/save {path}")
    other = Conversation(llm, TextOutput(stats=False))  # type: ignore[arg-type]
    obey(other, f"/load {path}")
    assert (other.messages, other.requested) == (talk.messages, talk.requested)
    assert [p.name for p in tmp_path.iterdir()] == ["talk.json"]


def test_another_model_goes_on_with_a_warning(
    talk: Conversation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.json"
    saved.write(path, saved.SavedChat("another", [{"role": "user", "content": "hi"}], SamplingParams()))
    obey(talk, f"/load {path}")
    assert "held with another" in capsys.readouterr().err
    assert talk.messages == [{"role": "user", "content": "hi"}]


GOOD = {"version": 1, "model": "scripted", "messages": [], "sampling": {}}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "version"),
        ("{}", "version"),
        (json.dumps({**GOOD, "version": 2}), "version 2"),
        (json.dumps({**GOOD, "messages": [{"role": "wizard", "content": "x"}]}), "role"),
        (json.dumps({**GOOD, "messages": [{"role": "user", "content": 3}]}), "content"),
        (json.dumps({**GOOD, "messages": "hello"}), "message"),
        (json.dumps({**GOOD, "sampling": {"colour": 1}}), "sampling"),
        (json.dumps({**GOOD, "sampling": {"temperature": -3}}), "temperature"),
        (json.dumps({**GOOD, "sampling": {"stop": 5}}), "stop"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(talk: Conversation, tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "talk.json"
    path.write_text(content)
    before = list(talk.messages), talk.requested
    with pytest.raises(ConfigError, match=complaint):
        obey(talk, f"/load {path}")
    assert (talk.messages, talk.requested) == before


def test_save_writes_where_a_link_points(tmp_path: Path) -> None:
    link, file = tmp_path / "link.json", tmp_path / "file.json"
    file.touch()
    link.symlink_to(file)
    for model in ("m", "m\udcff.gguf"):  # the name of a file may be no UTF-8
        saved.write(link, saved.SavedChat(model, [{"role": "user", "content": "Grüße"}], SamplingParams()))
        assert link.is_symlink() and saved.read(file).model == model


def test_save_does_not_take_the_place_of_a_device(talk: Conversation, tmp_path: Path) -> None:
    """A pipe stands for /dev/null, which root could have lost."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no plain file"):
        obey(talk, f"/save {tmp_path / 'pipe'}")
    assert (tmp_path / "pipe").is_fifo()


def test_save_into_nowhere_is_a_sentence(talk: Conversation, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        obey(talk, f"/save {tmp_path}/file/talk.json")
    with pytest.raises(ConfigError, match="there is no folder"):
        obey(talk, f"/save {tmp_path}/new/talk.json")
    assert not (tmp_path / "new").exists()


# ---- tools and thinking -------------------------------------------------------------------------------------------


class ToolLLM(ScriptedLLM):
    """Thinks, and calls a tool twice before it answers."""

    def _say(self, words: list[str], n_prompt: int) -> Iterator[Chunk]:
        deltas: tuple[Delta, ...] = (ReasoningDelta("Hm \x1b[2J."), "Sunny.")
        if self.requested[-1][-1]["role"] == "user":
            calls = [ToolCallDelta(i, '{"city": "Rome", "days": 3}', f"call_{i}", "get_weather") for i in range(2)]
            deltas = (ReasoningDelta("Hm."), *calls)
        done = Completion(text_of(deltas), [1], n_prompt, 0, "stop", RequestStats(), tool_calls=tool_calls_of(deltas))
        yield Chunk(deltas, [1], "stop", done)


def test_calls_are_shown_and_what_is_typed_next_are_their_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    talk = Conversation(ToolLLM(), TextOutput(stats=False))  # type: ignore[arg-type]
    repl(talk, lines("warm in Rome?", "31 degrees", "yes, 31", f"/save {tmp_path / 'talk.json'}", "/clear"))
    captured = capsys.readouterr()
    assert captured.out == 'get_weather(city="Rome", days=3)\n' * 2 + "Sunny.\n"
    assert "Hm.\n" in captured.err and captured.err.count("is the result of get_weather") == 2
    roles = [message["role"] for message in talk.llm.requested[-1]]  # type: ignore[attr-defined]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert talk.llm.requested[-1][2] == {  # type: ignore[attr-defined]
        "role": "tool", "tool_call_id": "call_0", "name": "get_weather", "content": "31 degrees"
    }  # fmt: skip
    obey(talk, f"/load {tmp_path / 'talk.json'}")
    assert len(talk.messages) == 5 and talk.messages[1]["tool_calls"][1]["id"] == "call_1"


def test_thinking_can_be_hidden_and_is_never_part_of_the_reply(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (True, False):
        talk = Conversation(ToolLLM(), TextOutput(stats=False, thinking=shown))  # type: ignore[arg-type]
        repl(talk, lines("warm?"))
        captured = capsys.readouterr()
        assert ("Hm." in captured.err) is shown and "Hm" not in captured.out and "Hm" not in str(talk.messages)
    talk = Conversation(ToolLLM(), JsonlOutput(stats=False))  # type: ignore[arg-type]
    repl(talk, lines("warm?"))
    event = json.loads(capsys.readouterr().out.splitlines()[1])
    assert event["reasoning"] == "Hm." and event["tool_calls"][0]["name"] == "get_weather"


# ---- events for programs ------------------------------------------------------------------------------------------


def test_jsonl_events(llm: ScriptedLLM, capsys: pytest.CaptureFixture[str]) -> None:
    talk = Conversation(llm, JsonlOutput(stats=False))  # type: ignore[arg-type]
    talk.output.ready(llm.name, llm.backend_summary)
    repl(talk, lines("one", "/clear", "two", "x " * 2000))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds == ["ready", "user", "assistant", "clear", "user", "assistant", "user", "assistant", "exit"]
    assert events[0] == {"event": "ready", "model": "scripted", "backend": "paper"}
    assert events[1] == {"event": "user", "turn": 1, "content": "one"}
    facts = {"turn": 1, "content": "reply 1 is this", "finish_reason": "stop", "n_tokens": 3, "chunk_count": 3}
    assert events[2].items() >= facts.items() and isinstance(events[2]["ms"], int)
    assert events[7]["finish_reason"] == "error" and events[7]["error"] == "The prompt does not fit."
    assert events[8] == {"event": "exit", "reason": "eof"}
    assert len(llm.requested[1]) == 1  # cleared
