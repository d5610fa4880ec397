"""Writes the tables of fields in docs/serving.md: what becomes of every field of a body, from the bodies themselves.

Run: python scripts/field_tables.py   (tests/apis/test_fields.py fails when a table is no longer true)
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

import msgspec

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "serving.md"
sys.path[:0] = [str(ROOT)]

from tahr.server.anthropic import bodies as anthropic  # noqa: E402
from tahr.server.anthropic import fields as anthropic_fields  # noqa: E402
from tahr.server.audio import bodies as audio  # noqa: E402
from tahr.server.audio import speech_fields  # noqa: E402
from tahr.server.bodies import decoding  # noqa: E402
from tahr.server.bodies.sampling_fields import LlamaSamplingFields  # noqa: E402
from tahr.server.files import bodies as files  # noqa: E402
from tahr.server.llamacpp import bodies as llamacpp  # noqa: E402
from tahr.server.ollama import bodies as ollama  # noqa: E402
from tahr.server.ollama import fields as ollama_fields  # noqa: E402
from tahr.server.openai import bodies as openai  # noqa: E402
from tahr.server.openai import rerank  # noqa: E402
from tahr.server.responses import bodies as responses  # noqa: E402
from tahr.server.responses import fields as responses_fields  # noqa: E402

MARK = "<!-- fields of {} -->"
ENDS = "<!-- end of fields -->"
Only = dict[str, list[Any]]


class BodyFields(NamedTuple):
    """A kind of body, where it is sent, and the values that some of its fields are held to; none: it is refused."""

    title: str
    body: type[msgspec.Struct]
    only: Mapping[str, list[Any]] = MappingProxyType({})


class Sorted(NamedTuple):
    """The fields of a body by what becomes of them."""

    honoured: list[str]
    only: Only
    inert: list[str]
    refused: list[str]


def held(values: dict[str, Any]) -> Only:
    """Fields that may hold one value alone."""
    return {name: [value] for name, value in values.items()}


def harmless(body: type[msgspec.Struct], checks: dict[str, Callable[[Any], bool]]) -> Only:
    """Fields that are checked for asking nothing, with the values of their description that pass."""
    return {
        name: [value for value in enum_of(body, name) if value is not None and checks[name](value)] for name in checks
    }


def enum_of(body: type[msgspec.Struct], name: str) -> list[Any]:
    """The values that a field is described to take."""
    if name not in body.__struct_fields__:
        return []
    hint = get_type_hints(body, include_extras=True)[name]
    metas = [each for part in (hint, *getattr(hint, "__args__", ())) for each in getattr(part, "__metadata__", ())]
    schemas = [meta.extra_json_schema or {} for meta in metas if isinstance(meta, msgspec.Meta)]
    return [value for schema in schemas for value in (*schema.get("enum", ()), *enum_of_items(schema))]


def enum_of_items(schema: dict[str, Any]) -> list[Any]:
    return [[value] for value in schema.get("items", {}).get("enum", ())]


LIMITED = {name: list(values) for name, values in decoding.ONLY.items()}
NO_CUTS: Only = {"truncate": [False], "shift": [False]}
ASKS_NOTHING = harmless(responses.ResponsesBody, dict(responses_fields.HARMLESS))
ASKS_NOTHING_HERE = harmless(anthropic.MessagesBody, dict(anthropic_fields.HARMLESS))
SAMPLING = LlamaSamplingFields.__struct_fields__
REFUSED_PROMPT: Only = {name: [] for name in ("template", "context")}

TABLES: dict[str, list[BodyFields]] = {
    "OpenAI": [
        BodyFields("sampling", LlamaSamplingFields),
        BodyFields("`/v1/chat/completions`", openai.ChatBody, LIMITED),
        BodyFields("`/v1/completions`", openai.CompletionBody, LIMITED),
        BodyFields("a message of a chat", openai.Message, LIMITED),
        BodyFields("`/v1/embeddings`", openai.EmbeddingBody),
        BodyFields("`/v1/audio/transcriptions`", audio.TranscriptionBody, LIMITED),
        BodyFields("`/v1/audio/translations`", audio.TranslationBody),
        BodyFields("`/v1/audio/speech`", speech_fields.SpeechBody, LIMITED),
        BodyFields("`/v1/files`", files.FileBody),
        BodyFields("`/v1/batches`", files.BatchBody),
        BodyFields("`/v1/rerank`", rerank.RerankBody),
        BodyFields("`/v1/score`", rerank.ScoreBody),
        BodyFields("`/tokenize`", openai.TokenizeBody),
        BodyFields("`/detokenize`", openai.DetokenizeBody),
        BodyFields("`/apply-template`", openai.TemplateBody),
    ],
    "Responses": [BodyFields("`/v1/responses`", responses.ResponsesBody, ASKS_NOTHING)],
    "Anthropic": [
        BodyFields("`/v1/messages`", anthropic.MessagesBody, ASKS_NOTHING_HERE),
        BodyFields("a message", anthropic.AnthropicMessage),
        BodyFields("a tool", anthropic.AnthropicTool),
    ],
    "Ollama": [
        BodyFields("`/api/chat`", ollama.OllamaChatBody, NO_CUTS),
        BodyFields("`/api/generate`", ollama.OllamaGenerateBody, NO_CUTS | REFUSED_PROMPT),
        BodyFields("`options`", ollama.OllamaOptions, held(ollama_fields.ONLY)),
        BodyFields("`/api/embed`", ollama.OllamaEmbedBody),
    ],
    "llama.cpp": [
        BodyFields("`/completion`", llamacpp.NativeCompletionBody, held(llamacpp.ONLY)),
        BodyFields("`/infill`", llamacpp.InfillBody, held(llamacpp.ONLY)),
    ],
}


def annotations(body: type[msgspec.Struct]) -> dict[str, str]:
    """Each field with its annotation as it is written: `Inert` and `Limited` are words for any value."""
    found: dict[str, str] = {}
    for each in reversed([kind for kind in body.__mro__ if kind.__module__.startswith("tahr.")]):
        made = ast.parse(inspect.getsource(each)).body[0]
        assert isinstance(made, ast.ClassDef)
        lines = [node for node in made.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
        found |= {node.target.id: ast.unparse(node.annotation) for node in lines if isinstance(node.target, ast.Name)}
    return found


def sort(fields: BodyFields) -> Sorted:
    """What becomes of each field of a body."""
    written = annotations(fields.body)
    names = dict(zip(fields.body.__struct_fields__, fields.body.__struct_encode_fields__, strict=True))
    made = Sorted([], {}, [], [])
    for name, shown in names.items():
        if written[name] == "Inert":
            made.inert.append(shown)
        elif written[name] == "Refused" or fields.only.get(name) == []:
            made.refused.append(shown)
        elif name in fields.only:
            made.only[shown] = fields.only[name]
        else:
            assert written[name] != "Limited", f"{name} is limited, but nothing says to which values"
            made.honoured.append(shown)
    return made


def table(fields: BodyFields) -> Iterator[str]:
    made = sort(fields)
    yield f"| {fields.title} | |"
    yield "|---|---|"
    yield f"| honoured | {listed(made.honoured)} |"
    if made.only:
        values = [
            f"`{name}`: {' or '.join(f'`{json.dumps(each)}`' for each in only)}" for name, only in made.only.items()
        ]
        yield f"| only these values, others refused | {'; '.join(values)} |"
    if made.inert:
        yield f"| taken, change nothing | {listed(made.inert)} |"
    if made.refused:
        yield f"| refused by name | {listed(made.refused)} |"
    yield ""


def listed(names: list[str]) -> str:
    """Names of fields; those of sampling, which several bodies have, in a word where there are others."""
    own = [f"`{name}`" for name in names if name not in SAMPLING]
    has_sampling = own and set(names) > set(SAMPLING)
    return ", ".join(["those of sampling", *own] if has_sampling else [f"`{name}`" for name in names])


def block(dialect: str) -> str:
    """The tables of one dialect between their marks."""
    lines = [line for fields in TABLES[dialect] for line in table(fields)]
    return "\n".join([MARK.format(dialect), "", *lines, ENDS])


def page(text: str) -> str:
    """The page with all tables as they are now."""
    for dialect in TABLES:
        mark = re.escape(MARK.format(dialect))
        text, n = re.subn(rf"{mark}.*?{re.escape(ENDS)}", lambda _, name=dialect: block(name), text, flags=re.DOTALL)
        assert n == 1, f"docs/serving.md has no place for the fields of {dialect}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
