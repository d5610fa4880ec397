"""Structured output by other people's clients against a running server: openai's parse, instructor, LangChain."""

import sys
from datetime import date
from enum import Enum
from typing import Literal

import instructor
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

BASE = sys.argv[1] + "/v1"
MODEL = sys.argv[2]
ASK = [{"role": "user", "content": "Invent an animal. Answer with JSON."}]


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Closed(BaseModel):
    """Other fields are forbidden: a small model at temperature 1 would go on adding them up to the length limit."""

    model_config = ConfigDict(extra="forbid")


class Leg(Closed):
    side: Literal["left", "right"]
    length: int = Field(ge=0, le=99)  # a number with a fraction may have digits without end


class Animal(Closed):
    """An animal with everything that schemas of classes are made of."""

    name: str = Field(max_length=20)
    size: Size
    born: date
    legs: list[Leg] = Field(max_length=2)
    owner: str | None = Field(max_length=12)


def parse(client: OpenAI) -> None:
    """`parse` with a class, whole and streamed."""
    made = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Animal, temperature=1, max_tokens=400
    )
    assert isinstance(made.choices[0].message.parsed, Animal), made
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, response_format=Animal, temperature=1, max_tokens=400
    ) as events:
        last = events.get_final_completion()
    assert isinstance(last.choices[0].message.parsed, Animal), last


def json_object(client: OpenAI) -> None:
    made = client.chat.completions.create(
        model=MODEL, messages=ASK, response_format={"type": "json_object"}, temperature=0, max_tokens=200
    )
    assert made.choices[0].message.content.startswith("{"), made


def with_instructor(client: OpenAI) -> None:
    patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    made = patched.chat.completions.create(
        model=MODEL, messages=ASK, response_model=Animal, max_retries=0, max_tokens=400, temperature=1
    )
    assert isinstance(made, Animal), made


def with_langchain() -> None:
    chat = ChatOpenAI(
        model=MODEL, base_url=BASE, api_key="none", temperature=1, max_tokens=400, max_retries=0, timeout=120
    )
    bound = chat.with_structured_output(Animal, method="json_schema")
    assert isinstance(bound.invoke("Invent an animal."), Animal)
    *_, last = bound.stream("Invent an animal.")
    assert isinstance(last, Animal), last
    schema = {"title": "answer", "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
              "required": ["n"], "additionalProperties": False}  # fmt: skip
    assert 0 <= chat.with_structured_output(schema, method="json_schema").invoke("A number.")["n"] <= 9


with OpenAI(base_url=BASE, api_key="none", max_retries=0, timeout=120) as sdk:
    parse(sdk)
    json_object(sdk)
    with_instructor(sdk)
with_langchain()
