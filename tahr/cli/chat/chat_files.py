"""Conversations in files: what `/save` writes and `/load` reads.

Beside the conversation there may be a file with its keys and values, named by its digest in the first one.
"""

import errno
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tahr.cli.settings.options import said
from tahr.config import SamplingParams, sampling_names
from tahr.errors import ConfigError
from tahr.hub.store import write_bytes, write_text
from tahr.regular_file import read_bytes

VERSION = 1
MAX_CHAT_BYTES = 256 << 20
KV_SUFFIX = ".kv"
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A conversation at rest."""

    model: str
    messages: list[dict[str, Any]]
    sampling: SamplingParams
    kv_sha256: str | None = None  # digest of the file with keys and values, if there is one


def kv_file(path: Path) -> Path:
    """Where the keys and values of a conversation are; what a stranger's file says has no part in it."""
    return path.with_name(path.name + KV_SUFFIX)


def beside_kv(path: Path) -> Path:
    """The conversation that `path` is about: whoever names the file of keys and values means the one beside it."""
    return path.with_suffix("") if path.suffix == KV_SUFFIX else path


def conversation_at(path: Path) -> Path:
    """The conversation beside a file that is read, if there is one."""
    beside = beside_kv(path)
    return beside if beside.is_file() else path


def write(path: Path, saved: SavedChat, kv: bytes | None = None) -> None:
    """Write all of it or nothing: a crash leaves the file that was there before."""
    content: dict[str, Any] = {
        "version": VERSION,
        "model": saved.model,
        "sampling": said(saved.sampling),
        "messages": saved.messages,
    }
    if not path.parent.is_dir():  # a mistyped path must not become a folder
        raise ConfigError(f"The conversation cannot be written to {path}: there is no folder {path.parent}.")
    if path.exists() and not path.is_file():  # a device such as /dev/null, whose place the new file would take
        raise ConfigError(f"The conversation cannot be written to {path}: it is no plain file. Give another name.")
    if kv is not None:
        content["kv_sha256"] = hashlib.sha256(kv).hexdigest()
    try:
        if kv is not None:
            write_bytes(kv_file(path), kv)  # first: a conversation never names keys and values that are not there
        write_text(path, as_text(content))
    except OSError as error:
        raise ConfigError(f"The conversation cannot be written to {path}: {error.strerror}.") from error


def as_text(content: dict[str, Any]) -> str:
    """JSON that people can read; what is no UTF-8, as the name of a model's file may be, is escaped."""
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(content, indent=1) + "\n"
    return text


def read(path: Path) -> SavedChat:
    """A conversation that `write` made; anything else is refused."""
    try:
        content = json.loads(read_bytes(path, MAX_CHAT_BYTES))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a saved conversation: it does not hold JSON.") from error
    if not isinstance(content, dict) or "version" not in content:
        raise ConfigError(f"{path} is not a saved conversation: it has no version field.")
    if content["version"] != VERSION:
        raise ConfigError(
            f"{path} has version {content['version']!r} and this Tahr reads version {VERSION}: "
            "load it with the Tahr that saved it."
        )
    digest = content.get("kv_sha256")
    if digest is not None and not isinstance(digest, str):
        raise ConfigError(f"{path} is damaged: kv_sha256 is not a digest.")
    return SavedChat(str(content.get("model")), messages_of(content, path), sampling_of(content, path), digest)


def read_kv(path: Path, digest: str, max_bytes: int) -> bytes:
    """The keys and values beside a conversation, exactly as they were written."""
    beside = kv_file(path)
    try:
        data = read_bytes(beside, max_bytes)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ConfigError(f"{beside} is larger than the keys and values this model can hold.") from error
        raise ConfigError(f"{beside} cannot be read: {error.strerror}.") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise ConfigError(f"{beside} is not the file that was saved with {path.name}: its digest differs.")
    return data


def messages_of(content: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    messages = content.get("messages")
    if not isinstance(messages, list) or not all(is_message(message) for message in messages):
        raise ConfigError(f"{path} is damaged: every message needs a role ({', '.join(ROLES)}) and a content of text.")
    return messages


def is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return False
    calls = message.get("tool_calls", [])
    return is_content(message.get("content")) and isinstance(calls, list) and all(map(is_call, calls))


def is_content(content: Any) -> bool:
    """A text, or a list of texts and images."""
    return isinstance(content, str) or (isinstance(content, list) and all(map(is_part, content)))


def is_part(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind in ("text", "image_url") and isinstance(part.get(kind), str)


def is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and isinstance(call.get("id"), str)


def sampling_of(content: dict[str, Any], path: Path) -> SamplingParams:
    values = content.get("sampling")
    if not isinstance(values, dict) or not values.keys() <= set(sampling_names()):
        raise ConfigError(f"{path} is damaged: its sampling values are not ones this Tahr knows.")
    return SamplingParams.of(values)
