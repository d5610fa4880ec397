"""`response_format` in the library: a reply is read into the object that was asked for."""

import asyncio
import gc
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

from tahr import LLM, AsyncLLM, BeamSearchConfig, InferenceConfig, InferenceEngine, SamplingParams
from tahr.errors import ConfigError, GrammarError
from tahr.grammar import Grammar
from tahr.library.structured.dataclass_schema import schema_of
from tahr.library.structured.dataclass_values import from_json
from tahr.library.structured.response_format import response_format_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Toy:
    name: Literal["ball", "car"]
    colour: Colour
    weight: float


@dataclass
class Child:
    age: Literal[3, 4, 5]
    toys: tuple[Toy, Toy]
    friend: "Child | None" = None
    tags: list[bool] = field(default_factory=list)


class Animal(pydantic.BaseModel):
    legs: Literal[2, 4]
    is_big: bool
    sound: Literal["moo", "peep"]


HOT = SamplingParams(temperature=1, seed=1, max_tokens=200)


@pytest.fixture(scope="module")
def llm(stories: Path) -> Iterator[LLM]:
    with LLM(str(stories)) as made:
        yield made


def test_a_pydantic_model_comes_back(llm: LLM) -> None:
    done = llm.generate(["Once", "There"], HOT, response_format=Animal, progress=False)
    for each in done:
        assert isinstance(each.parsed, Animal) and each.parse_error == ""
        assert each.parsed == Animal.model_validate_json(each.text)


def test_a_dataclass_comes_back(llm: LLM) -> None:
    done = llm.generate("Once", SamplingParams(temperature=1, seed=3, max_tokens=200, n=2), response_format=Toy)
    for each in (done, *done.others):
        assert each.finish_reason == "length" or (
            isinstance(each.parsed, Toy) and isinstance(each.parsed.colour, Colour)
        )
    assert done.parsed


def test_a_schema_comes_back_as_plain_values(llm: LLM) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
    for requested in (
        schema,
        {"type": "json_schema", "json_schema": {"schema": schema}},
        Grammar("json_schema", schema),
    ):
        assert set(llm.generate("Once", HOT, response_format=requested).parsed) <= {1, 2}
    assert llm.generate("Once", HOT, response_format=Grammar("choice", ["a", "b"])).parsed in ("a", "b")


def test_a_reply_that_is_cut_short_has_no_object(llm: LLM) -> None:
    done = llm.generate("Once", SamplingParams(max_tokens=2, temperature=0), response_format=Animal)
    assert done.finish_reason == "length" and done.parsed is None and done.text


def test_rules_that_a_schema_does_not_say_are_told_beside_the_text(llm: LLM) -> None:
    class Strict(Animal):
        @pydantic.field_validator("legs")
        @classmethod
        def never(cls, legs: int) -> int:
            raise ValueError("no legs")

    done = llm.generate("Once", HOT, response_format=Strict)
    assert done.parsed is None and "no legs" in done.parse_error and done.text


def test_streams_and_async_code_have_it_too(llm: LLM, stories: Path) -> None:
    *_, last = llm.stream("Once", HOT, response_format=Animal)
    assert last.completion and isinstance(last.completion.parsed, Animal)

    async def ask() -> Any:
        async with AsyncLLM(str(stories)) as served:
            return await served.generate("Once", HOT, response_format=Animal)

    assert asyncio.run(ask()).parsed == last.completion.parsed


@pytest.mark.parametrize("requested", ["json", int, Animal(legs=2, is_big=True, sound="moo"), {"type": "json_schema"}])
def test_what_is_no_format_is_refused(llm: LLM, requested: Any) -> None:
    with pytest.raises(ConfigError):
        llm.generate("Once", HOT, response_format=requested)


def test_two_grammars_are_one_too_many(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="both say"):
        llm.generate("Once", SamplingParams(grammar=Grammar("regex", "a")), response_format=Animal)
    with pytest.raises(GrammarError, match="uses not"):
        llm.generate("Once", HOT, response_format={"not": {}})
    assert response_format_of({"type": "text"}) is None


def test_dataclasses_as_schemas_and_back() -> None:
    value = {
        "age": 4,
        "toys": [{"name": "ball", "colour": "red", "weight": 1}, {"name": "car", "colour": "blue", "weight": 2.5}],
        "friend": {"age": 3, "toys": [], "friend": None},
    }
    toys = (Toy("ball", Colour.RED, 1.0), Toy("car", Colour.BLUE, 2.5))
    value["friend"]["toys"] = value["toys"]  # type: ignore[index]
    assert from_json(Child, value) == Child(4, toys, Child(3, toys))
    schema = schema_of(Child)
    (child,) = [each for name, each in schema["$defs"].items() if name.endswith("Child")]
    assert child["required"] == ["age", "toys"] and child["additionalProperties"] is False
    assert json.loads(json.dumps(schema)) == schema

    @dataclass
    class Odd:
        when: complex

    with pytest.raises(ConfigError, match="complex"):
        schema_of(Odd)


@dataclass
class Circle:
    kind: Literal["circle"]
    size: int


@dataclass
class Square:
    kind: Literal["square"]
    size: int


@dataclass
class Label:
    size: str


@dataclass
class Drawing:
    shape: Circle | Square | Label
    title: float | str
    depth: float | bool
    parts: list[Circle] | list[Square]
    names: dict[str, int] | dict[str, str] | None = None


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ({"shape": {"kind": "square", "size": 1}, "title": "3.5", "depth": True, "parts": []},
         Drawing(Square("square", 1), "3.5", True, [])),
        ({"shape": {"size": "1"}, "title": 3, "depth": 2, "parts": [{"kind": "square", "size": 1}],
          "names": {"a": "b"}},
         Drawing(Label("1"), 3.0, 2.0, [Square("square", 1)], {"a": "b"})),
    ],
)  # fmt: skip
def test_a_union_is_read_as_the_type_that_the_value_fits(value: Any, made: Drawing) -> None:
    """Python lets any class hold any value, so that trying to make one says little."""
    read = from_json(Drawing, value)
    assert read == made and type(read.title) is type(made.title) and type(read.depth) is type(made.depth)


# ---- one text at a time -----------------------------------------------------------------------------------------


@pytest.fixture
def one(stories: Path) -> Iterator[InferenceEngine]:
    engine = InferenceEngine(InferenceConfig(model_path=str(stories), context_size=256))
    engine.load_model()
    yield engine


def test_an_inference_engine_follows_a_grammar(one: InferenceEngine) -> None:
    digits = SamplingParams(temperature=1, seed=4, grammar=Grammar("regex", "[0-9]{3,5}!"))
    assert re.fullmatch("[0-9]{3,5}!", one.generate_with_config("Once", 40, digits))


def test_beams_stay_in_the_language(one: InferenceEngine) -> None:
    prompt = one.tokenize("Once upon a time")
    config = BeamSearchConfig(beam_width=3, max_new_tokens=30)
    found = one.beam_generate(prompt, config, grammar=Grammar("choice", ["there was", "they went", "zebra"]))
    texts = ["".join(map(one.decode_token, each.tokens[each.n_prompt :])) for each in found]
    assert set(texts) <= {"there was", "they went", "zebra"} and texts and all(each.finished for each in found)


def test_a_snapshot_keeps_the_grammar(stories: Path) -> None:
    bound = SamplingParams(temperature=0, grammar=Grammar("choice", ["yes", "no"]))
    engine = InferenceEngine(InferenceConfig(model_path=str(stories), context_size=256, sampler=bound))
    engine.load_model()
    engine.prefill(engine.tokenize("Once"))
    assert InferenceEngine.snapshot_info(engine.snapshot()).config.sampler == bound


def test_a_model_that_nobody_closes_leaves_no_process_behind(stories: Path) -> None:
    """Grammars are tried out in one; an InferenceEngine cannot be closed at all."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    if not children.exists():
        pytest.skip("this system does not list the children of a thread")
    gc.collect()
    before = children.read_text().split()
    engine = InferenceEngine(InferenceConfig(model_path=str(stories)))
    engine.load_model()
    engine.generate_with_config("Once", 3, SamplingParams(grammar=Grammar("regex", "[a-z]+")))
    assert len(children.read_text().split()) == len(before) + 1
    del engine
    gc.collect()
    assert children.read_text().split() == before
