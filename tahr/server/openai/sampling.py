"""The sampling fields of OpenAI's bodies, in all their spellings."""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

from tahr.config import sampling_names
from tahr.server.http.errors import bad_field
from tahr.server.openai.bodies import ChatBody, CompletionBody, GenerationBody
from tahr.server.replies.params import within

# Fields that clients spell in another way too; the first spelling that is given counts.
SPELLINGS = {
    "max_tokens": ("max_completion_tokens", "max_tokens", "n_predict"),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
    "thinking_budget": ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens"),
}
NAMES = tuple(name for name in sampling_names() if name != "logprobs")
SPELLED = {name: SPELLINGS.get(name, (name,)) for name in NAMES}


@cache
def fields_of(kind: type[GenerationBody]) -> tuple[list[tuple[str, str]], Callable[[Any], tuple[Any, ...]]]:
    """The sampling fields of a kind of body with the names they stand for, and what takes their values."""
    pairs = [(way, name) for name, ways in SPELLED.items() for way in ways if way in kind.__struct_fields__]
    return pairs, attrgetter(*(way for way, _ in pairs))


def collect(body: GenerationBody) -> tuple[dict[str, Any], dict[str, str]]:
    """The values by our name, and the name the client used where that is another."""
    given: dict[str, Any] = {}
    names: dict[str, str] = {}
    spellings, values_of = fields_of(type(body))
    for (spelling, name), value in zip(spellings, values_of(body), strict=True):
        if value is not None and name not in given:
            given[name] = value
            if spelling != name:
                names[name] = spelling
    given["logprobs"] = n_logprobs(body)
    return given, names


def n_logprobs(body: GenerationBody) -> int | None:
    """How many likeliest tokens to list; None: no log-probabilities at all."""
    if isinstance(body, ChatBody):
        if body.top_logprobs is not None and not body.logprobs:
            raise bad_field("top_logprobs", "top_logprobs needs logprobs to be true: set it, or leave both out.")
        return within("top_logprobs", body.top_logprobs or 0) if body.logprobs else None
    assert isinstance(body, CompletionBody)
    return None if body.logprobs is None else within("logprobs", body.logprobs)
