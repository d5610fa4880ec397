"""Schemas as OpenAPI's descriptions have them: nothing is judged wrongly, and every refusal says where."""

import random
from typing import Any

import pytest

from openapi_schemas import FORMATS, Maker, Schema, Values
from tahr.errors import GrammarError
from tiers import examples

jsonschema = pytest.importorskip("jsonschema")
json_schema_suite = pytest.importorskip("json_schema_suite")  # needs llguidance

N_SCHEMAS = 300
N_VALUES = 12


def validator(root: Schema) -> Any:
    """One that knows of each format the value that is drawn; all others that are drawn do not fit."""
    checker = jsonschema.FormatChecker(formats=())
    for name, known in FORMATS.items():
        checker.checks(name)(lambda value, known=known: not isinstance(value, str) or value == known)
    return jsonschema.Draft202012Validator(root, format_checker=checker)


def judged(root: Schema, kind: str, values: list[object]) -> list[bool]:
    matcher = json_schema_suite.compiled(root, kind)
    return [any(json_schema_suite.accepts(matcher, text) for text in json_schema_suite.texts(each)) for each in values]


def test_they_are_judged_rightly_and_every_refusal_has_a_place() -> None:
    n_accepted = 0
    for seed in range(examples(N_SCHEMAS)):
        rng = random.Random(seed)
        root = Maker(rng).description()
        made = Values(rng, root)
        values = [made.changed(value) if i % 2 else value for i in range(N_VALUES) for value in [made.value(root)]]
        right = [validator(root).is_valid(each) for each in values]
        try:
            assert judged(root, "json_schema", values) == right, (seed, root, values)
            n_accepted += 1
        except GrammarError as error:
            assert str(error).startswith("The schema at #/"), error
            loose = judged(root, "loose_json_schema", values)
            assert all(is_taken for is_taken, is_right in zip(loose, right, strict=True) if is_right), (seed, root)
    assert n_accepted > 0.8 * examples(N_SCHEMAS)
