"""What a chat asks for beside its messages and its grammar. Most requests ask for the same, so it is remembered."""

from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from tahr.generation.chat_options import ChatOptions
from tahr.server.openai.bodies import ChatBody
from tahr.server.openai.chat_fields import OPTION_FIELDS, budget_of, options_of
from tahr.server.openai.sampling import N_CACHED, SPELLED, Asked, params_of

NAMES = tuple(dict.fromkeys((*(name for each in SPELLED.values() for name in each), *OPTION_FIELDS)))
VALUES = attrgetter(*NAMES, "logprobs", "top_logprobs")


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How to sample the reply, and what else it may be."""

    asked: Asked
    options: ChatOptions


def settings_of(body: ChatBody) -> ChatSettings:
    """The settings of a request, checked."""
    values = VALUES(body)
    try:
        hash(values)
    except TypeError:  # lists and objects: tools, stop strings, variables of the template
        return checked_settings(body)
    return known_settings(values)


@lru_cache(maxsize=N_CACHED)
def known_settings(values: tuple[Any, ...]) -> ChatSettings:
    *given, logprobs, top_logprobs = values
    fields = dict(zip(NAMES, given, strict=True))
    return checked_settings(ChatBody(messages=[], logprobs=logprobs, top_logprobs=top_logprobs, **fields))


def checked_settings(body: ChatBody) -> ChatSettings:
    return ChatSettings(with_budget(params_of(body), budget_of(body)), options_of(body))


def with_budget(asked: Asked, budget: int | None) -> Asked:
    """The budget of thinking, where a field about thinking holds it; a field of its own counts first."""
    if budget is None or asked.params.thinking_budget is not None:
        return asked
    return replace(asked, params=replace(asked.params, thinking_budget=budget))
