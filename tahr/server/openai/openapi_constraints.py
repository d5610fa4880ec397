"""Constraints of single fields beyond their type, taken from the tables that check them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import isinf
from typing import Any

from tahr.config import Range, SamplingParams, whole
from tahr.library.inputs.text_inputs import INPUT_TYPES
from tahr.server.bodies.decoding import ONLY
from tahr.server.bodies.image_parts import ContentPart
from tahr.server.bodies.messages import ROLES, Message
from tahr.server.openai.embedding_items import MODALITIES
from tahr.server.openai.embeddings import FORMS, POOLINGS
from tahr.server.openai.sampling import SPELLED
from tahr.server.replies.params import MAX_CHARS, MAX_CHOICES, MAX_TOP_LOGPROBS, MOST
from tahr.text.replies.thinking import EFFORTS

Keywords = dict[str, Any]  # keywords of JSON Schema


def with_convention(name: str) -> Range:
    """The values of a sampling parameter, and those that other programs write to mean one of them."""
    allowed = SamplingParams.RANGES[name]
    (written, _) = SamplingParams.CONVENTIONS.get(name, (None, None))
    return allowed if written is None or allowed.holds(written) else replace(allowed, low=written, low_included=True)


RANGES: Mapping[str, Range] = {
    **{way: with_convention(name) for name, ways in SPELLED.items() for way in ways if name in SamplingParams.RANGES},
    "n": whole(1, MAX_CHOICES),
    "logprobs": whole(0, MAX_TOP_LOGPROBS),
    "top_logprobs": whole(0, MAX_TOP_LOGPROBS),
    "prompt_logprobs": whole(0, MAX_TOP_LOGPROBS),
    "dimensions": whole(1),
    "truncate_prompt_tokens": whole(-1),
    "top_n": whole(1),
}
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "role": tuple(ROLES),
    "type": ("text",),
    "encoding_format": FORMS,
    "pooling": POOLINGS,
    "modality": MODALITIES,
    "input_type": tuple(INPUT_TYPES),
    "mirostat": (0, 2),
    "tool_choice": ("auto", "none", "required", "any"),
    "function_call": ("auto", "none"),
    "reasoning_effort": EFFORTS,
}
NOT_EMPTY = {  # /tokenize takes an empty text
    ("ChatBody", "messages"),
    ("TemplateBody", "messages"),
    ("TokenizeBody", "messages"),
    ("EmbeddingBody", "input"),
    *(("RerankBody", name) for name in ("query", "documents")),
    *(("ScoreBody", name) for name in ("text_1", "text_2")),
    ("CompletionBody", "prompt"),
}


def tighten(schemas: dict[str, Any], bodies: Iterable[type]) -> None:
    """Add the bounds of all fields of these bodies and of what is inside them, in place."""
    for title in (body.__name__ for body in (*bodies, Message, ContentPart)):
        for field, declared in schemas[title]["properties"].items():
            tighten_field(title, field, declared)


def tighten_field(title: str, field: str, declared: Keywords) -> None:
    if field in ONLY:  # a value of any type has no bounds to add
        declared["enum"] = [None, *ONLY[field]]
    for option in declared.get("anyOf", [declared]):
        for kind, keywords in bounds(title, field):
            if option.get("type") in kind:
                option.update(keywords)


def bounds(title: str, field: str) -> Iterator[tuple[tuple[str, ...], Keywords]]:
    """Types, and the keywords of the field where it has one of them."""
    if allowed := RANGES.get(field):
        yield ("integer", "number"), of_range(allowed)
    if field in CHOICES:
        yield ("string", "integer"), {"enum": list(CHOICES[field])}
    if field in MOST:
        yield ("array",), {"maxItems": MOST[field]}
        yield ("object",), {"maxProperties": MOST[field]}
    if field in MOST or field == "cache_salt":
        yield ("string",), {"maxLength": MAX_CHARS}
    if (title, field) in NOT_EMPTY:
        yield ("array",), {"minItems": 1}
        yield ("string",), {"minLength": 1}


def of_range(allowed: Range) -> Keywords:
    made: Keywords = {"minimum" if allowed.low_included else "exclusiveMinimum": allowed.low}
    return made if isinf(allowed.high) else made | {"maximum": allowed.high}
