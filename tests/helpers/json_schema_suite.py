"""The JSON-Schema-Test-Suite against compiled grammars: which schemas are refused and why, and who is wrong about what.

A JSON text is one of many that write the same value: a grammar accepts a value if it accepts one of its texts, with the
keys of objects in any order and whole numbers with or without `.0`. The suite's own `format.json` is left out: there
formats are annotations, here (as in the suite's optional part) they count.
"""

import json
import re
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tahr.errors import GrammarError
from tahr.grammar.worker import Trials, reply_to
from tahr.grammar.workers import LIMITS, checked
from tahr.text.tokens.special_names import SpecialNames

DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
LEFT_OUT = ("format.json",)
MAX_TEXTS = 200  # of one value
MAX_KEYS = 4  # whose orders are all tried


@dataclass
class Report:
    """What came of one draft."""

    n_schemas: int = 0
    n_accepted: int = 0
    n_instances: int = 0
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # reasons, and whose they are
    wrong: list[str] = field(default_factory=list)


def cases(archive: Path, draft: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files of a draft and what is in them."""
    inside = f"tests/{draft}/"
    with tarfile.open(archive) as suite:
        for member in sorted(suite.getmembers(), key=lambda each: each.name):
            name = member.name.partition(inside)[2]
            if name.endswith(".json") and name not in LEFT_OUT:
                stored = suite.extractfile(member)
                assert stored
                yield from ((name, case) for case in json.load(stored))


def run(archive: Path, draft: str) -> Report:
    """Compile all schemas of a draft, and try all instances of those that compile."""
    report = Report()
    for name, case in cases(archive, draft):
        report.n_schemas += 1
        where = f"{draft}/{name}: {case['description']}"
        try:
            matcher = compiled(with_draft(case["schema"], draft))
        except GrammarError as error:
            report.refused[str(error)].append(where)
            continue
        report.n_accepted += 1
        for test in case["tests"]:
            report.n_instances += 1
            if any(accepts(matcher, text) for text in texts(test["data"])) != test["valid"]:
                report.wrong.append(f"{where}: {test['description']}")
    return report


def with_draft(schema: Any, draft: str) -> Any:
    return {"$schema": DRAFTS[draft], **schema} if isinstance(schema, dict) else schema


def compiled(schema: Any, kind: str = "json_schema") -> LLMatcher:
    """The grammar of a schema over single bytes, as a worker makes it: what it accepts depends on no vocabulary."""
    text = checked(reply_to({"kind": kind, "source": json.dumps(schema)}, SpecialNames({}), Trials({}, 0, LIMITS)))
    return LLMatcher(LLTokenizer("byte"), text, log_level=0, limits=LLParserLimits(**LIMITS))


def accepts(matcher: LLMatcher, text: str) -> bool:
    tried, data = matcher.deep_copy(), list(text.encode("utf-8", "surrogatepass"))
    return tried.try_consume_tokens(data) == len(data) and tried.is_accepting()


def texts(value: Any) -> list[str]:
    found = islice(variants(value), MAX_TEXTS)
    return [json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in found]


def variants(value: Any) -> Iterator[Any]:
    """The same value in other ways."""
    if isinstance(value, dict):
        orders = permutations(value.items()) if len(value) <= MAX_KEYS else [tuple(value.items())]
        for items in orders:
            for values in together([each for _, each in items]):
                yield dict(zip([key for key, _ in items], values, strict=True))
    elif isinstance(value, list):
        yield from map(list, together(value))
    else:
        yield value
        if isinstance(value, float) and value.is_integer():
            yield int(value)


def together(values: list[Any]) -> Iterator[tuple[Any, ...]]:
    return islice(product(*(list(islice(variants(each), 6)) for each in values)), 50)


REASONS = {  # of refusals, by what their messages hold
    "which a grammar cannot enforce": None,  # named in the message
    "may both fit a value": "`oneOf` whose branches are not seen to exclude each other",
    '"$dynamicAnchor"': "`$ref` to a meta-schema",
    "allows nothing": "schemas that nothing satisfies",
    "not disjoint": "`patternProperties` that may match the same name",
    "another document": "`$ref` to another document",
    "where no keyword leads to": "`$ref` to a place in another document that is no schema's",
    "circular references": "`$ref` in a circle with keywords beside it",
    "float range": "bounds of numbers far beyond 2^53",
    "too many digits": "`multipleOf` with more than 15 digits",
    "regex": "patterns that Rust's expressions cannot say (look-around, back references)",
    "word boundary": "patterns with a word boundary",
}


def reason(message: str) -> str:
    """A short name of why a schema was refused."""
    for words, meaning in REASONS.items():
        if words in message:
            return meaning or quoted(message.split(", which a grammar")[0])
    return message


def quoted(message: str) -> str:
    """What a message names: a keyword, a format, or something else."""
    if " uses " in message:
        return f"`{message.split(' uses ')[-1]}`"
    return re.sub(r"^the format (.*)$", r"`format: \1`", message.split(" has ")[-1])


def table(reports: dict[str, Report]) -> str:
    """What is refused, as Markdown."""
    counts = {
        draft: Counter(reason(message) for message, names in report.refused.items() for _ in names)
        for draft, report in reports.items()
    }
    reasons = sorted(set().union(*counts.values()), key=lambda each: (-sum(c[each] for c in counts.values()), each))
    lines = ["| refused | " + " | ".join(reports) + " |", "|---|" + "---|" * len(reports)]
    lines += [f"| {each} | " + " | ".join(str(counts[draft][each]) for draft in reports) + " |" for each in reasons]
    sums = {
        "schemas": "n_schemas",
        "accepted": "n_accepted",
        "instances of those, all judged rightly": "n_instances",
    }
    lines += ["", "| | " + " | ".join(reports) + " |", "|---|" + "---|" * len(reports)]
    lines += [
        f"| {name} | " + " | ".join(str(getattr(report, key)) for report in reports.values()) + " |"
        for name, key in sums.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table({draft: run(Path(sys.argv[1]), draft) for draft in DRAFTS}))
