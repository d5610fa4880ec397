"""Ollama's Python package, langchain-ollama and llama-index against running servers: a real model, and a scripted one.

Arguments: the real server's address, its model, the scripted server's address.
"""

import sys
from typing import Any

import ollama
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from llama_index.core.llms import ChatMessage
from llama_index.llms.ollama import Ollama
from pydantic import BaseModel

REAL, MODEL, SCRIPTED = sys.argv[1:4]
GREEDY = {"temperature": 0, "num_predict": 8}


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str, days: int) -> str:
    """The weather of a city.

    Args:
        city: its name
        days: how many
    """
    return f"{city} is sunny for {days} days"


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def check_models(client: ollama.Client) -> None:
    """Every call about models."""
    assert MODEL in [each.model for each in client.list().models]
    shown = client.show(MODEL)
    assert "completion" in (shown.capabilities or []) and shown.details.family == "llama"
    loaded = client.ps().models[0]
    assert loaded.model == MODEL and loaded.size > 10**6 and loaded.expires_at
    assert client.copy(MODEL, "another").status == "success"
    assert client.generate("another", "Hi", options=GREEDY).response
    assert client.delete("another").status == "success"
    assert refused(lambda: client.generate("another", "Hi")).status_code == 404
    assert refused(lambda: client.pull("http://evil.example/x")).status_code == 400
    assert refused(lambda: client.create("x", from_=MODEL)).status_code == 400
    assert refused(lambda: client.push("x")).status_code == 400
    assert client.generate(MODEL).done_reason == "load"


def refused(call: Any) -> ollama.ResponseError:
    try:
        call()
    except ollama.ResponseError as error:
        return error
    raise AssertionError("it was not refused")


def check_texts(client: ollama.Client) -> None:
    """What any model can do; a stream is the whole reply."""
    whole = client.chat(MODEL, said("Why is the sky blue?"), options=GREEDY, keep_alive=-1)
    parts = list(client.chat(MODEL, said("Why is the sky blue?"), options=GREEDY, stream=True))
    assert whole.message.content and "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done_reason == whole.done_reason == "length" and parts[-1].eval_count == whole.eval_count == 8
    assert parts[-1].total_duration and parts[-1].prompt_eval_count == whole.prompt_eval_count
    one = client.generate(MODEL, "The sky is", raw=True, options=GREEDY)
    assert one.response == "".join(
        part.response for part in client.generate(MODEL, "The sky is", raw=True, options=GREEDY, stream=True)
    )
    options = {"temperature": 0, "num_predict": 60}
    made = client.chat(MODEL, said("Who is Ann?"), format=Person.model_json_schema(), options=options)
    assert made.done_reason == "length" or Person.model_validate_json(made.message.content or "")
    vectors = client.embed(MODEL, ["a", "b"])
    assert len(vectors.embeddings) == 2 and client.embeddings(MODEL, "a").embedding


def check_tools(client: ollama.Client) -> None:
    """A whole loop with tools, and thinking, with a model that plays along."""
    messages: list[Any] = said("WEATHER please")
    whole = client.chat("scripted", messages, tools=[get_weather], think=True)
    calls = whole.message.tool_calls or []
    assert [call.function.arguments for call in calls] == [
        {"city": "Rome", "days": 3},
        {"city": 'Øslo \\ "x"', "days": 1},
    ]
    parts = list(client.chat("scripted", messages, tools=[get_weather], think=True, stream=True))
    assert [call.function for part in parts for call in part.message.tool_calls or []] == [c.function for c in calls]
    assert "".join(part.message.thinking or "" for part in parts) == whole.message.thinking
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    results = [
        {"role": "tool", "content": get_weather(**call.function.arguments), "tool_name": call.function.name}
        for call in calls
    ]
    last = client.chat("scripted", [*messages, whole.message, *results], tools=[get_weather])
    assert "Rome is sunny for 3 days" in (last.message.content or "")
    thought = client.generate("scripted", "THINK", think=True)
    assert "weigh" in (thought.thinking or "") and "42" in thought.response


def check_wrappers() -> None:
    chat = ChatOllama(model="scripted", base_url=SCRIPTED, reasoning=True)
    reply = chat.bind_tools([get_weather]).invoke("WEATHER please")
    assert reply.tool_calls[0]["args"] == {"city": "Rome", "days": 3}
    assert "weigh" in reply.additional_kwargs["reasoning_content"]
    assert "".join(str(part.content) for part in chat.stream("hello")) == "You said: hello"
    assert chat.with_structured_output(Person).invoke("JSON") == Person(name="Ann", age=7)
    real = OllamaLLM(model=MODEL, base_url=REAL, temperature=0, num_predict=4)
    assert real.invoke("Hi") == "".join(real.stream("Hi"))
    assert len(OllamaEmbeddings(model=MODEL, base_url=REAL).embed_documents(["a", "b"])) == 2
    index = Ollama(model="scripted", base_url=SCRIPTED, request_timeout=60, context_window=2048)
    assert index.chat([ChatMessage(role="user", content="hello")]).message.content == "You said: hello"
    assert "".join(part.delta or "" for part in index.stream_complete("hello")) == "You said: hello"


client = ollama.Client(REAL)
check_models(client)
check_texts(client)
check_tools(ollama.Client(SCRIPTED))
check_wrappers()
