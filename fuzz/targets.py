"""What strangers' bytes are given to, one function each. A refusal (TahrError) is right; any other error is a find."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import msgspec

from tahr.errors import TahrError
from tahr.grammar.gbnf.translation import to_lark
from tahr.grammar.schema_check import checked_schema
from tahr.images.decoding import decoded
from tahr.images.limits import DecodedBytes, ImageLimits
from tahr.server.bodies.decoding import check_limited, decode
from tahr.server.http.errors import HttpError
from tahr.server.openai.bodies import ChatBody
from tahr.server.openai.chat import check_stream, conversation_of
from tahr.server.openai.chat_fields import budget_of, options_of
from tahr.server.openai.grammars import grammar_of
from tahr.server.openai.sampling import collect
from tahr.speech.audio.wav import read_wav
from tahr.text.templates.chat import ChatTemplate
from tahr.text.tokens.gguf_vocab import read_gguf
from tahr.text.tokens.json_vocab import read_json
from tahr.weights.gguf import open_gguf
from tahr.weights.safetensors import open_safetensors

REFUSALS = (TahrError, HttpError)
CORPUS = Path(__file__).with_name("corpus")
CHAT_BODY = msgspec.json.Decoder(ChatBody)
TEXT = "ab c <s> Ein Test, 测试 \u00e9\u0301"
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": "2", "tool_call_id": "a"},
]
IMAGES = ImageLimits(max_image_bytes=1 << 20, max_image_pixels=1 << 20, decoded_image_bytes=1 << 24)


def gguf(data: bytes) -> None:
    """A model file, and the vocabulary that it may have."""
    opened = open_gguf(data)
    if "tokenizer.ggml.model" in opened.metadata:
        read_gguf(opened.metadata)


def safetensors(data: bytes) -> None:
    path = scratch() / "model.safetensors"
    path.write_bytes(data)
    open_safetensors(path)


def tokenizer_json(data: bytes) -> None:
    vocab = read_json(data, {}, {})
    vocab.parsing(TEXT)
    vocab.plain(TEXT)


def chat_template(data: bytes) -> None:
    ChatTemplate(data.decode(errors="replace"), seconds=0.5, max_chars=1 << 16).render(CONVERSATION)


def gbnf(data: bytes) -> None:
    to_lark(data.decode(errors="replace"))


def json_schema(data: bytes) -> None:
    if (schema := parsed(data)) is not None:
        checked_schema(schema)


def chat_body(data: bytes) -> None:
    """A body of /v1/chat/completions, up to where a model would be needed."""
    body = decode(CHAT_BODY, data)
    check_limited(body)
    check_stream(body)
    collect(body)
    budget_of(body)
    grammar_of(body)
    options_of(body)
    conversation_of(body)


def image(data: bytes) -> None:
    with decoded(data, IMAGES, DecodedBytes(IMAGES.decoded_image_bytes)) as found:
        found.tobytes()


def wav(data: bytes) -> None:
    _, blocks = read_wav(BytesIO(data))
    for block in blocks:
        block.sum()


class Target(NamedTuple):
    run: Callable[[bytes], None]
    max_bytes: int = 1 << 14  # larger inputs find little that smaller ones do not, slowly


TARGETS = {
    "gguf": Target(gguf),
    "safetensors": Target(safetensors),
    "tokenizer_json": Target(tokenizer_json),
    "chat_template": Target(chat_template, 1 << 12),
    "gbnf": Target(gbnf, 1 << 11),
    "json_schema": Target(json_schema, 1 << 12),
    "chat_body": Target(chat_body, 1 << 12),
    "image": Target(image),
    "wav": Target(wav),
}


def tried(name: str, data: bytes) -> bool:
    """Give one input to a target; whether it was refused. Any error but a refusal goes on upwards."""
    try:
        TARGETS[name].run(data)
    except REFUSALS:
        return True
    return False


def kept(name: str) -> list[Path]:
    """Inputs that are kept: what the target is meant for, and everything that was ever found."""
    return sorted(path for path in (CORPUS / name).iterdir() if path.is_file())


def parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


@cache
def scratch() -> Path:
    folder = tempfile.mkdtemp(prefix="tahr-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
