"""Structural tags: free text in which each occurrence of a tag holds what a JSON schema says."""

import json
from typing import Any

from tahr.errors import GrammarError
from tahr.grammar.json_rule import json_rule
from tahr.grammar.schema_place import Problem
from tahr.text.tokens.special_names import SpecialNames

FORM = (
    'structural_tag must be as {"structures": [{"begin": "<f=a>", "schema": {...}, "end": "</f>"}], '
    '"triggers": ["<f="]}'
)
HEAD = """%%llguidance {}
start: (%s)* text
text: TEXT
TEXT: /(.|\\n)*/
"""


def to_lark(tag: Any, names: SpecialNames, problem: Problem | None = None) -> str:
    """The grammar in Lark: text up to a trigger, which begins one of the structures, again and again."""
    structures, triggers = fields_of(tag)
    rules = [rule(i, each, trigger_of(each["begin"], triggers), names, problem) for i, each in enumerate(structures)]
    return HEAD % " | ".join(f"tag_{i}" for i in range(len(rules))) + "\n".join(rules) + "\n"


def fields_of(tag: Any) -> tuple[list[dict[str, Any]], list[str]]:
    if not isinstance(tag, dict) or not isinstance(tag.get("structures"), list) or not tag["structures"]:
        raise GrammarError(f"{FORM}.")
    structures = tag["structures"]
    for each in structures:
        texts = [each.get("begin"), each.get("end")] if isinstance(each, dict) else [None]
        if not all(isinstance(text, str) for text in texts) or not texts[0] or "schema" not in each:
            raise GrammarError(f"{FORM}.")
    triggers = tag.get("triggers") or [each["begin"] for each in structures]
    if not isinstance(triggers, list) or not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise GrammarError(f"{FORM}.")
    return structures, triggers


def trigger_of(begin: str, triggers: list[str]) -> str:
    found = [trigger for trigger in triggers if begin.startswith(trigger)]
    if not found:
        raise GrammarError(f"The structure that begins with {begin!r} starts with none of the triggers: add one.")
    return max(found, key=len)


def rule(
    i: int,
    structure: dict[str, Any],
    trigger: str,
    names: SpecialNames,
    problem: Problem | None,
) -> str:
    rest = structure["begin"][len(trigger) :]
    end = structure["end"]
    schema = json.dumps(json_rule(structure["schema"], problem))
    body = " ".join(filter(None, [quoted(rest), f"%json {schema}", quoted(end)]))
    if (token := names.id_of(trigger)) is not None:
        return f"tag_{i}: TEXT <[{token}]> {body}"
    return f"trigger_{i}[lazy]: TEXT {quoted(trigger)}\ntag_{i}: trigger_{i} {body}"


def quoted(text: str) -> str:
    """A text as Lark writes it; nothing for an empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""
