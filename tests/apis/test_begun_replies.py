"""A last message of the assistant is the beginning of the reply, which goes on from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, client_of
from tahr import LLM, SamplingParams
from tahr.generation.request import ChatPrompt, GenerationRequest
from tahr.generation.resolve import NO_LIMITS, RequestFacts, n_prompt_tokens, resolve
from tahr.text.templates.chat import ChatTemplate
from tool_replies import TOOL_TEMPLATE

USER = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "The answer is <s>"}
EACH = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
TEMPLATE = EACH + "{% if add_generation_prompt %}[assistant]{% endif %}"
# path, fields, where the text of the reply is
APIS = {
    "/v1/messages": ({"max_tokens": 99}, lambda made: made["content"][-1]["text"]),
    "/api/chat": ({"model": "scripted", "stream": False}, lambda made: made["message"]["content"]),
    "/v1/chat/completions": ({"continue_final_message": True}, lambda made: made["choices"][0]["message"]["content"]),
}


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(context_size=4096, template=TOOL_TEMPLATE)


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with client_of(engine) as made:
        yield made


@pytest.mark.parametrize("path", APIS)
def test_a_reply_goes_on_from_its_beginning(client: httpx.Client, engine: ScriptedEngine, path: str) -> None:
    fields, text_of = APIS[path]
    engine.scripts.append(" 42.")
    made = client.post(path, json={"messages": [USER, BEGUN], **fields})
    assert made.status_code == 200 and text_of(made.json()) == " 42.", (
        "its first space stays, and the beginning is not repeated"
    )
    assert engine.seen[-1].text.endswith("[assistant]<think>\n\n</think>\n\nThe answer is <s>")
    assert engine.seen[-1].tokens.count(engine.tokenizer.bos_id) == 1, "the beginning names no special token"


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    "messages",
    [
        [BEGUN],
        [USER, {"role": "assistant", "content": ""}],
        [USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]}],
    ],
)
def test_what_cannot_be_continued_is_refused(client: httpx.Client, path: str, messages: list[Any]) -> None:
    if path == "/v1/messages" and "tool_calls" in messages[-1]:
        use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
        messages = [USER, {"role": "assistant", "content": [{"type": "text", "text": "I"}, use]}]
    made = client.post(path, json={"messages": messages, **APIS[path][0]})
    assert made.status_code == 400 and "messages" in made.text, made.text


def test_thinking_comes_before_a_reply_has_begun(client: httpx.Client) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {"messages": [USER, BEGUN], "max_tokens": 2000}
    made = client.post("/v1/messages", json=body | {"thinking": thinking})
    assert made.status_code == 400 and "thinking is on" in made.json()["error"]["message"]
    both = [
        client.post("/v1/messages/count_tokens", json={"messages": each}).json() for each in ([USER], [USER, BEGUN])
    ]
    assert both[1]["input_tokens"] > both[0]["input_tokens"] + len(BEGUN["content"]) - 1


def test_two_messages_of_the_assistant_at_the_end(client: httpx.Client) -> None:
    def status(messages: list[Any], **more: Any) -> int:
        return client.post("/v1/chat/completions", json={"messages": messages, **more}).status_code

    assert status([USER, BEGUN, BEGUN]) == status([USER, BEGUN, BEGUN], continue_final_message=True) == 400
    assert status([USER, BEGUN]) == status([USER, BEGUN, BEGUN, USER]) == 200
    assert status([USER], continue_final_message=True) == 400
    assert status([USER, BEGUN], continue_final_message=True, add_generation_prompt=True) == 400


def test_a_model_goes_on_as_if_it_had_written_the_beginning(stories: Path) -> None:
    with LLM(str(stories)) as llm:
        facts = RequestFacts(llm.tokenizer, ChatTemplate(TEMPLATE), llm.context_size, llm.sampling_defaults)
        prompt = ChatPrompt([{"role": "user", "content": "Tell"}], begun="Once upon a")
        request = GenerationRequest(prompt, SamplingParams(max_tokens=5))
        alone = resolve(request.with_prompt(ChatPrompt(prompt.messages)), facts).tokens
        begun = llm.tokenizer.encode("Once upon a", add_special=False, parse_special=False)
        assert list(resolve(request, facts).tokens) == [*alone, *begun]
        assert n_prompt_tokens(request, facts, NO_LIMITS) == len(alone) + len(begun)
