"""Turns of a conversation with tools, for templates that take one call or no results at a time."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from tahr.text.templates.traits import THOUGHTS

if TYPE_CHECKING:
    pass


Message = Mapping[str, Any]


def names_of_calls(messages: Iterable[Message]) -> dict[str, str]:
    """Which tool each call was of, by its id."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {str(call["id"]): call["function"]["name"] for call in calls if call.get("id")}


def one_by_one(messages: Sequence[Message]) -> list[Message]:
    """Calls made at once as calls made one after the other, each with its result."""
    made: list[Message] = []
    moved: set[int] = set()
    for at, message in enumerate(messages):
        if id(message) in moved:
            continue
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            made.append(message)
            continue
        no_words = {name: value for name, value in message.items() if name not in THOUGHTS} | {"content": ""}
        results = results_after(messages, at)
        for i, call in enumerate(calls):
            made.append({**(message if i == 0 else no_words), "tool_calls": [call]})
            result = results.get(str(call.get("id")))
            if result is not None and id(result) not in moved:
                moved.add(id(result))
                made.append(result)
    return made


def results_after(messages: Sequence[Message], at: int) -> dict[str, Message]:
    """The results between a message and the next calls, by the ids of their calls; later ones may have the same ids."""
    following = (messages[i] for i in range(at + 1, len(messages)))  # a slice would copy all that follow
    until_calls = takewhile(lambda each: not each.get("tool_calls"), following)
    return {str(each.get("tool_call_id")): each for each in until_calls if each.get("role") == "tool"}


def merged(messages: Sequence[Message]) -> list[Message]:
    """Neighbours by the user as one message: templates that know no results want turns to alternate."""
    made: list[Message] = []
    for message in messages:
        last = made[-1] if made else None
        if last is not None and last.get("role") == message.get("role") == "user":
            made[-1] = {**last, "content": f"{last.get('content')}\n\n{message.get('content')}"}
        else:
            made.append(message)
    return made
