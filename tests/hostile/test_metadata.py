"""Model files whose metadata is odd: every value of the wrong kind is refused in a sentence, or does no harm.

Each field of a sound model is replaced by each odd value in turn; then the model is opened, built, tokenised with and
its template rendered. Only errors of ours may come out, without escape sequences, and quickly.
"""

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from model_cases import CASES, make_weights
from model_files import to_gguf, write_hf
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import TahrError
from tahr.models.loader.load import OpenedModel, load, open_model
from tahr.text.templates.chat import template_for
from tahr.text.templates.prompt import encode_chat
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.weights import MetadataArray, open_gguf
from tiny_vocabulary import tiny

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
ESCAPE = "\x1b[2J\x9b31m\u202e"
ODD: dict[str, Any] = {
    "true": True,
    "minus one": -1,
    "zero": 0,
    "huge": 2**64 - 1,
    "fraction": 1.5,
    "not a number": math.nan,
    "infinite": math.inf,
    "nothing": "",
    "NUL": "\0",
    "escape": ESCAPE,
    "half a character": "\udc80",
    "long": "x" * 100_000,
    "empty list": [],
    "numbers": [1, -1, 2**63],
    "words": ["a", "\0", ESCAPE],
    "lists": [["a"], [1]],
}
ODD_JSON = ODD | {
    "vast": 10**30,
    "larger than floats": 10**400,
    "null": None,
    "object": {"a": [{}]},
    "nested": [[[[[[{"x": [[]]}]]]]]],
}


def use(source: OpenedModel, tokenizer_of: Any, template_from: Any) -> None:
    """All that is done with a model's metadata."""
    config = source.model_config()
    source.sampling(config)
    load(source, ReferenceBackend())
    tokenizer: Tokenizer = tokenizer_of()
    tokenizer.encode("ab abc")
    tokenizer.vocab_bytes()
    template = template_for(template_from, tokenizer)
    if template is not None:
        encode_chat(tokenizer, template, [{"role": "user", "content": "ab"}])


def refused_or_harmless(source: OpenedModel, tokenizer_of: Any, template_from: Any) -> None:
    try:
        use(source, tokenizer_of, template_from)
    except TahrError as error:
        check(str(error))


def check(message: str) -> None:
    assert not set(message) & {"\x1b", "\x9b", "\0", "\u202e", "\udc80"}, "escape sequences reach the terminal"
    assert message[:1].isupper() or message.startswith(("/", "tokenizer.json", "config.json"))
    assert message.rstrip(")").endswith("."), message
    assert len(message) < 4000, "the message quotes a whole field"


# ---- GGUF -------------------------------------------------------------------------------------------------------

GGUF = open_gguf(to_gguf(CASES["gemma3"] | {"vocab_size": 36}, make_weights(CASES["gemma3"] | {"vocab_size": 36})))
GGUF_FIELDS = {
    **GGUF.metadata,
    **tiny(),
    "general.name": "toy",
    "general.alignment": 32,
    "general.sampling.temp": 0.5,
    "general.sampling.top_k": 40,
    "general.sampling.penalty_last_n": 64,
    "gemma3.rope.scaling.type": "linear",
    "gemma3.rope.scaling.factor": 2.0,
    "gemma3.attention.sliding_window_pattern": 6,
    "tokenizer.ggml.eot_token_id": 1,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_space_prefix": True,
    "tokenizer.chat_template": TEMPLATE,
    "tokenizer.chat_template.tool_use": TEMPLATE,
}


def as_stored(value: Any) -> Any:
    """Lists as an opened file has them."""
    return MetadataArray(len(value), lambda: value) if isinstance(value, list) else value


@pytest.mark.parametrize("model", ["gpt2", "llama", "bert", "t5"])
@pytest.mark.parametrize("odd", ODD)
def test_odd_gguf_metadata(odd: str, model: str) -> None:
    fields = GGUF_FIELDS | {"tokenizer.ggml.model": model, "tokenizer.ggml.precompiled_charsmap": [0] * 8}
    names = fields if model == "gpt2" else [name for name in fields if name.startswith("tokenizer.ggml")]
    for name in names:
        metadata = fields | {name: as_stored(ODD[odd])}
        source = OpenedModel("toy", "gguf", metadata, GGUF.tensors, 1, {})
        refused_or_harmless(source, partial(Tokenizer.from_gguf, metadata), metadata)


# ---- Hugging Face -----------------------------------------------------------------------------------------------

TOKENIZER = {
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<s>",
    },
    "added_tokens": [
        {
            "id": 0,
            "content": "<s>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {"<s>": 0, "a": 1, "b": 2, "c": 3, "Ġ": 4, "ab": 5},
        "merges": [["a", "b"]],
    },
}
JSON_FILES: dict[str, Any] = {
    "tokenizer.json": TOKENIZER,
    "tokenizer_config.json": {"bos_token": "<s>", "eos_token": {"content": "<s>"}, "add_bos_token": True}
    | {"chat_template": [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": TEMPLATE}]},
    "special_tokens_map.json": {"bos_token": {"content": "<s>"}},
    "generation_config.json": {"eos_token_id": [0], "temperature": 0.5, "top_k": 5, "do_sample": True},
    "config.json": CASES["llama_llama3"] | {"text_config": {}, "layer_types": None, "eos_token_id": 0},
}


def changed(tree: Any, odd: Any) -> Iterator[Any]:
    """The tree with each of its values, and itself, replaced."""
    yield odd
    for key in range(len(tree)) if isinstance(tree, list) else tree if isinstance(tree, dict) else ():
        for inner in changed(tree[key], odd):
            out = tree.copy()
            out[key] = inner
            yield out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = CASES["llama_llama3"]
    path = write_hf(tmp_path_factory.mktemp("model"), config, make_weights(config))
    for name, content in JSON_FILES.items():
        (path / name).write_text(json.dumps(content))
    return path


def use_folder(folder: Path) -> None:
    try:
        use(open_model([], folder), lambda: Tokenizer.from_dir(folder), folder)
    except TahrError as error:
        check(str(error))


@pytest.mark.parametrize("odd", ODD_JSON)
@pytest.mark.parametrize("name", JSON_FILES)
def test_odd_json(name: str, odd: str, folder: Path) -> None:
    file = folder / name
    try:
        for tree in changed(JSON_FILES[name], ODD_JSON[odd]):
            file.write_text(json.dumps(tree))
            use_folder(folder)
    finally:
        file.write_text(json.dumps(JSON_FILES[name]))


RAW = {
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "digits": b'{"eos_token_id": ' + b"9" * 50_000 + b', "bos_token": 1}',
    "not UTF-8": b'{"bos_token": "\xff\xfe"}',
    "UTF-16": '{"bos_token": "a"}'.encode("utf-16"),
    "empty": b"",
    "NUL": b"\0" * 100,
    "cut": b'{"bos_token": "',
}


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("name", [*JSON_FILES, "chat_template.jinja", "chat_template.json"])
def test_files_that_are_not_json(name: str, raw: str, folder: Path) -> None:
    file = folder / name
    before = file.read_bytes() if file.exists() else None
    try:
        file.write_bytes(RAW[raw])
        use_folder(folder)
    finally:
        file.unlink() if before is None else file.write_bytes(before)


def test_the_sound_model_works(folder: Path) -> None:
    use(open_model([], folder), lambda: Tokenizer.from_dir(folder), folder)
    source = OpenedModel("toy", "gguf", GGUF_FIELDS, GGUF.tensors, 1, {})
    use(source, lambda: Tokenizer.from_gguf(GGUF_FIELDS), GGUF_FIELDS)
