"""OpenAI's Python package against a running server: chat, stream, completions, embeddings, models, errors, async."""

import asyncio
import math
import sys

import openai
from openai import AsyncOpenAI, OpenAI

BASE = sys.argv[1] + "/v1"
GRAVITY = [{"role": "user", "content": "What is gravity?"}]
GREEDY = {"temperature": 0, "max_tokens": 24}


def chat(client: OpenAI, model: str) -> str:
    made = client.chat.completions.create(model=model, messages=GRAVITY, **GREEDY)
    text = made.choices[0].message.content
    assert "ravity" in text and made.choices[0].finish_reason in ("stop", "length"), made
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens
    return text


def stream(client: OpenAI, model: str, wanted: str) -> None:
    made = client.chat.completions.create(
        model=model, messages=GRAVITY, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(made)
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage.completion_tokens > 0
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == wanted
    sentence = {"temperature": 0, "max_tokens": 64, "stop": "."}  # the helper refuses a reply that was cut off
    with client.chat.completions.stream(model=model, messages=GRAVITY, **sentence) as events:
        assert events.get_final_completion().choices[0].message.content == wanted.split(".")[0]


def completions(client: OpenAI, model: str) -> None:
    made = client.completions.create(model=model, prompt=["One, two,", "A, B,"], logprobs=2, n=2, **GREEDY)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert "three" in made.choices[0].text and len(made.choices[0].logprobs.top_logprobs[0]) == 2
    parts = client.completions.create(model=model, prompt="One, two,", stream=True, **GREEDY)
    assert "".join(part.choices[0].text for part in parts) == made.choices[0].text


def embeddings(client: OpenAI, model: str) -> None:
    made = client.embeddings.create(model=model, input=["a goat", "a boat"])
    plain = client.embeddings.create(model=model, input=["a goat", "a boat"], encoding_format="float")
    for packed, listed in zip(made.data, plain.data, strict=True):
        assert math.dist(packed.embedding, listed.embedding) < 1e-5
        assert abs(math.hypot(*listed.embedding) - 1) < 1e-4


def errors(client: OpenAI, model: str) -> None:
    for wanted, param, options in (
        (openai.NotFoundError, "model", {"model": "absent"}),
        (openai.BadRequestError, "temperature", {"model": model, "temperature": -1}),
        (openai.BadRequestError, "tools", {"model": model, "tools": [{"type": "function", "function": {}}]}),
    ):
        try:
            client.chat.completions.create(messages=GRAVITY, **options)
        except wanted as error:
            assert error.param == param and error.body["message"], error
        else:
            raise AssertionError(f"{options} were taken")


async def many(model: str, wanted: str) -> None:
    async with AsyncOpenAI(base_url=BASE, api_key="none", timeout=120) as client:

        async def whole() -> str:
            made = await client.chat.completions.create(model=model, messages=GRAVITY, **GREEDY)
            return made.choices[0].message.content

        async def parts() -> str:
            made = await client.chat.completions.create(model=model, messages=GRAVITY, stream=True, **GREEDY)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in made])

        assert set(await asyncio.gather(*(ask() for ask in [whole, parts] * 4))) == {wanted}


def main() -> None:
    client = OpenAI(base_url=BASE, api_key="none", max_retries=0, timeout=120)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).object == "model"
    wanted = chat(client, model)
    stream(client, model, wanted)
    completions(client, model)
    embeddings(client, model)
    errors(client, model)
    asyncio.run(many(model, wanted))


main()
