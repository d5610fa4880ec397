"""One request, whatever API it comes by: read alike, merged once, checked once."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripted_engine import ScriptedEngine
from tahr.config import SamplingParams
from tahr.config import sampling as sampling_config
from tahr.generation.request import ChatPrompt, GenerationRequest
from tahr.generation.resolve import Limits, RequestFacts, resolve
from tahr.generation.thinking import ThinkingOptions
from tahr.generation.tools import tool_options
from tahr.grammar import Grammar
from tahr.library.llm import chat_request, text_request
from tahr.server.anthropic import messages as anthropic
from tahr.server.conversations.sessions import Caller
from tahr.server.http.errors import HttpError
from tahr.server.llamacpp import completion as llamacpp
from tahr.server.models.registry import ServedModel
from tahr.server.ollama import generation as ollama
from tahr.server.openai import chat as openai
from tahr.server.openai import completions
from tahr.server.replies.served import ServedRequest, prepare
from tahr.server.responses import responses
from tahr.server.state.settings import Settings
from tahr.server.state.state import ServerState

BODIES = re.compile(r"\b(ChatBody|CompletionBody|GenerationBody)\b")
DIALECT = ("openai", "observe")  # OpenAI's, and the dumps
SERVER = Path(__file__).resolve().parents[2] / "tahr" / "server"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Tells it.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
PARAMS: dict[str, Any] = {"temperature": 0.25, "top_p": 0.75, "max_tokens": 7}
CALLER = Caller("key", "", "salted")
TEXT = "Hello?"
REQUEST: Any = None  # Ollama's formatter keeps the HTTP request, which nothing here looks at


@pytest.fixture(scope="module")
def state() -> Iterator[ServerState]:
    made = ServerState(Settings(port=0, log_interval_s=0))
    made.models.put([ServedModel(("scripted",), ScriptedEngine())])
    made.models.open()
    yield made
    made.close()


def data_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


# ---- the same chat, in each API's words ---------------------------------------------------------------------


def of_openai(state: ServerState) -> ServedRequest:
    schema = {"name": "x", "schema": SCHEMA}
    form = {"type": "json_schema", "json_schema": schema}
    return openai.read(state, data_of(messages=MESSAGES, tools=TOOLS, response_format=form, **PARAMS), CALLER)


def of_anthropic(state: ServerState) -> ServedRequest:
    tools = [{"name": "weather", "description": "Tells it.", "input_schema": PARAMETERS}]
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    body = data_of(
        model="scripted", system="Be brief.", messages=MESSAGES[1:], tools=tools, output_config=config, **PARAMS
    )
    return anthropic.read(state, body, CALLER)


def of_responses(state: ServerState) -> ServedRequest:
    form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    given = {"temperature": 0.25, "top_p": 0.75, "max_output_tokens": 7}
    tools = [{"type": "function", **FUNCTION}]
    body = data_of(model="scripted", instructions="Be brief.", input="Hello?", tools=tools, text=form, **given)
    return responses.read(state, responses.Asker("owner"), body, CALLER)


def of_ollama(state: ServerState) -> ServedRequest:
    options = {"temperature": 0.25, "top_p": 0.75, "num_predict": 7}
    body = data_of(model="scripted", messages=MESSAGES, tools=TOOLS, format=SCHEMA, options=options)
    return ollama.chat_request(REQUEST, state, ollama.decode(ollama.CHAT, body), CALLER)


def of_library() -> GenerationRequest:
    params = SamplingParams.of({**PARAMS, "grammar": Grammar("json_schema", SCHEMA)})
    return replace(chat_request(MESSAGES, params, {"tools": TOOLS}), salt="salted")


CHATS: dict[str, Callable[[ServerState], ServedRequest]] = {
    "openai": of_openai,
    "anthropic": of_anthropic,
    "responses": of_responses,
    "ollama": of_ollama,
}


@pytest.mark.parametrize("api", CHATS)
def test_a_chat_is_the_same_request_in_every_api(state: ServerState, api: str) -> None:
    """Only OpenAI's clients are told of a length that does not fit; everybody else's is cut."""
    (made,) = CHATS[api](state).requests
    assert made.cuts_length == (api != "openai")
    assert comparable(made) == comparable(of_library())


def comparable(request: GenerationRequest) -> Any:
    """Without what the APIs do differently on purpose."""
    assert isinstance(request.prompt, ChatPrompt)
    tools = [(tool.name, tool.description, tool.parameters) for tool in request.tools.tools]
    thinking = replace(request.thinking, thinking=request.thinking.thinking or None)
    return request.prompt, request.params, tools, request.tools.choice, thinking, request.salt


# ---- the same text, where an API continues texts -------------------------------------------------------------


def text_of_openai(state: ServerState) -> ServedRequest:
    return completions.read(state, data_of(prompt=TEXT, **PARAMS), CALLER)


def text_of_llamacpp(state: ServerState) -> ServedRequest:
    body = data_of(prompt=TEXT, temperature=0.25, top_p=0.75, n_predict=7)
    return llamacpp.read_completion(state, body, CALLER)


def text_of_ollama(state: ServerState) -> ServedRequest:
    options = {"temperature": 0.25, "top_p": 0.75, "num_predict": 7}
    body = data_of(model="scripted", prompt=TEXT, raw=True, options=options)
    return ollama.text_request(REQUEST, state, ollama.decode(ollama.GENERATE, body), CALLER)


TEXTS: dict[str, Callable[[ServerState], ServedRequest]] = {
    "openai completions": text_of_openai,
    "llamacpp": text_of_llamacpp,
    "ollama raw": text_of_ollama,
}


@pytest.mark.parametrize("api", TEXTS)
def test_a_text_is_the_same_request_in_every_api(state: ServerState, api: str) -> None:
    (made,) = TEXTS[api](state).requests
    tokens = ScriptedEngine().tokenizer.encode(TEXT)
    expected = replace(text_request(tokens, SamplingParams.of(PARAMS)), salt="salted")
    assert replace(made, cuts_length=True) == expected and made.raw


# ---- once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [*CHATS, *TEXTS])
def test_parameters_are_checked_once_and_defaults_are_merged_once(
    state: ServerState, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"check_ranges": 0, "check_kinds": 0, "completed": 0, "over": 0}
    for owner, name in (
        (sampling_config, "check_ranges"),
        (sampling_config, "check_kinds"),
        (SamplingParams, "completed"),
        (SamplingParams, "over"),
    ):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), counts, name))
    prepare((CHATS | TEXTS)[api](state), Limits())
    assert counts == {"check_ranges": 1, "check_kinds": 1, "completed": 1, "over": 0}


def counted(inner: Callable[..., Any], counts: dict[str, int], name: str) -> Callable[..., Any]:
    def wrapper(*args: Any, **options: Any) -> Any:
        counts[name] += 1
        return inner(*args, **options)

    return wrapper


@pytest.mark.parametrize(
    ("api", "change", "param"),
    [
        ("openai", {"max_completion_tokens": 0}, "max_completion_tokens"),
        ("openai", {"repeat_penalty": -1}, "repeat_penalty"),
        ("openai", {"temperature": -1}, "temperature"),
        ("anthropic", {"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ],
)
def test_errors_name_the_client_s_own_fields(state: ServerState, api: str, change: dict[str, Any], param: str) -> None:
    module, names = (openai, {}) if api == "openai" else (anthropic, anthropic.SENT_NAMES)
    fields = {"messages": MESSAGES[1:], "model": "scripted", **({"max_tokens": 5} if api == "anthropic" else {})}
    with pytest.raises(HttpError) as caught:
        module.read(state, data_of(**{**fields, **change}), CALLER)
    assert caught.value.renamed(names).param == param


# ---- the request itself ---------------------------------------------------------------------------------------


def test_builders_set_fields() -> None:
    """Each sets what it is named after, and leaves the rest."""
    grammar, tools = Grammar("regex", "[0-9]+"), tool_options(TOOLS)
    plain = GenerationRequest(ChatPrompt(MESSAGES), SamplingParams(temperature=0.5))
    made = plain.with_id("mine").with_sample_len(9).with_grammar(grammar).with_tools(tools).with_priority(3)
    made = made.with_thinking(ThinkingOptions(True))
    assert (made.id, made.sample_len, made.params.grammar, made.tools) == ("mine", 9, grammar, tools)
    assert (made.params.priority, made.params.temperature, made.thinking.thinking) == (3, 0.5, True)
    assert (made.raw, made.prompt) == (False, plain.prompt)
    raw = made.with_raw("Once")
    assert (raw.raw, raw.prompt, raw.params) == (True, "Once", made.params)
    assert plain == GenerationRequest(ChatPrompt(MESSAGES), SamplingParams(temperature=0.5))


def test_resolving_fills_in_what_was_left_open() -> None:
    """Values that were asked for stay, also where they are the default of the type; lengths fit the context."""
    engine = ScriptedEngine(context_size=64)
    facts = RequestFacts.of(engine, replace(engine.sampling_defaults, min_p=0.25, stop=("x",)))
    requested = SamplingParams.of({"min_p": 0.0, "temperature": 1.0, "stop": ()})
    made = resolve(GenerationRequest("Hello", requested, cuts_length=True, salt="a"), facts)
    assert (made.params.min_p, made.params.temperature, made.params.stop) == (0.0, 1.0, ())
    assert made.params.max_tokens == 64 - len(made.tokens)
    assert (made.params.cache_salt, made.params.top_k) == ("a/", facts.defaults.top_k)
    open_params = resolve(GenerationRequest("Hello"), facts, Limits(max_tokens=5)).params
    assert (open_params.min_p, open_params.stop, open_params.max_tokens) == (0.25, ("x",), 5)


def test_a_chat_body_is_openai_s_alone() -> None:
    """Its bodies describe one API of five. Dumps only list the names of its fields."""
    others = [path for path in sorted(SERVER.rglob("*.py")) if path.relative_to(SERVER).parts[0] not in DIALECT]
    assert len(others) > 50
    assert [str(path.relative_to(SERVER)) for path in others if BODIES.search(path.read_text())] == []


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(TypeError, match="no setting 'heat'"):
        SamplingParams.of({"heat": 1})
