"""Prompts that ask a model for what stands between two texts, where its vocabulary has tokens for that."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tahr.server.http.errors import HttpError, bad_field
from tahr.server.models.engine_port import ServedEngine
from tahr.server.replies.prompts import check_text_size

if TYPE_CHECKING:
    from tahr.text.tokens.tokenizer import Tokenizer

# Before the prefix, before the suffix, before the middle; of models that were trained so.
NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
# Before the name of a repository, before each of its files.
REPOSITORY_NAMES = (("<|repo_name|>", "<|file_sep|>"), ("<repo_name>", "<file_sep>"), ("<reponame>", "<file_sep>"))
SNIPPET = "\n\n--- snippet ---\n\n"  # header of another file, where the vocabulary has no token for that
PROJECT = "myproject\n"


@dataclass(frozen=True, slots=True)
class FillInTokens:
    """The tokens that mark the parts of such a prompt."""

    prefix: int
    suffix: int
    middle: int


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file beside the one that is edited."""

    name: str
    text: str


def fill_in_tokens(tokenizer: "Tokenizer") -> FillInTokens | None:
    """None: the model was not trained for it."""
    found = first_known(tokenizer, NAMES)
    return FillInTokens(*found) if found else None


def first_known(tokenizer: "Tokenizer", groups: tuple[tuple[str, ...], ...]) -> list[int] | None:
    """The ids of the first names that are all special tokens of their own."""
    for names in groups:
        parts = [tokenizer.split_special(name) for name in names]
        ids = [part[0] for part in parts if len(part) == 1 and isinstance(part[0], int)]
        if len(ids) == len(names):
            return [token for token in ids if isinstance(token, int)]
    return None


def fill_in_prompt(
    engine: ServedEngine,
    prefix: str,
    suffix: str,
    fields: tuple[str, str] = ("input_prefix", "input_suffix"),
    files: tuple[OtherFile, ...] = (),
) -> list[int]:
    """The tokens of a prompt whose continuation stands between prefix and suffix."""
    tokenizer = engine.tokenizer
    marks = fill_in_tokens(tokenizer)
    if marks is None:
        message = f"The model {engine.name} has no tokens for filling in between two texts: take one made for code."
        raise HttpError(400, message, param=fields[1], code="unsupported")
    check_text_size(engine, prefix, fields[0])
    check_text_size(engine, suffix, fields[1])

    def encoded(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    before = [tokenizer.bos_id] if tokenizer.bos_id in tokenizer.encode("")[:1] else []
    others = other_files(engine, files) if files else []
    made = [*before, *others, marks.prefix, *encoded(prefix), marks.suffix, *encoded(suffix), marks.middle]
    return [token for token in made if token is not None]


def other_files(engine: ServedEngine, files: Sequence[OtherFile]) -> list[int]:
    """Tokens of other files: a repository, or snippets, where the vocabulary has no tokens for one."""
    tokenizer = engine.tokenizer
    known = first_known(tokenizer, REPOSITORY_NAMES)
    texts = [f"{file.name}\n{file.text}" if known else file.text for file in files]
    check_text_size(engine, "".join(texts), "input_extra")
    if len(files) > engine.context_size:  # each takes a token at least
        raise bad_field("input_extra", f"input_extra has {len(files)} files, which no context holds: send fewer.")
    made = [known[0], *tokenizer.encode(PROJECT, add_special=False)] if known else []
    begin = [known[1]] if known else tokenizer.encode(SNIPPET, add_special=False)
    for text in texts:
        made += [*begin, *tokenizer.encode(text, add_special=False, parse_special=False)]
    return made
