"""A folder per request, to find out later what happened: nine small files, without secrets and without texts.

`tahr replay-bundle` reads them back. Texts are in them only with `--request-dump-texts`.
"""

import hashlib
import json
import logging
import platform
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tahr import __version__
from tahr.config import sampling_values
from tahr.errors import ConfigError, CorruptFile
from tahr.regular_file import read_bytes
from tahr.server.bodies import image_parts, messages
from tahr.server.http.records import GenerationRecord, RequestRecord
from tahr.server.observe.observer import Observer
from tahr.server.openai import bodies

log = logging.getLogger("tahr.server")

FORMAT = 1
MANIFEST = "manifest.json"
FILES = ("request", "headers", "sampling", "model", "prompt", "response", "timings", "environment")
NAMES = (MANIFEST, *(f"{name}.json" for name in FILES))
ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")  # dumped also if refused, and sent again
REMOVED = "(removed)"
PLAIN_HEADERS = ("accept", "content-type", "content-length", "user-agent", "traceparent")  # hold no secret
PLAIN_FIELDS = ("role", "type", "encoding_format", "pooling")  # texts of which only a few are allowed
FREE = (
    "arguments",
    "input",
    "input_schema",
    "parameters",
    "schema",
    "metadata",
)  # whose members may be called anything
TOKENS = ("prompt", "input")  # fields in which a list of numbers stands for a text
KNOWN = {
    name
    for body in (
        *(bodies.ChatBody, bodies.CompletionBody, bodies.EmbeddingBody),
        *(messages.Message, image_parts.ContentPart, bodies.StreamOptions),
    )
    for name in body.__struct_fields__
}
MAX_DUMPS = 1000  # dumps of one server's life; the oldest are removed
MAX_PENDING = 256
MAX_FILE_BYTES = 256 << 20  # size of a bundle that is read
MAX_DEPTH = 256  # depth of its JSON: deeper trees parse, but cannot be printed


class RequestDumps(Observer):
    """Writes them on a thread of its own; if it cannot keep up, some are left out."""

    def __init__(self, folder: Path, texts: bool, settings: dict[str, Any]):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"The folder {folder} cannot be made ({error.strerror}): name another.") from error
        self._texts = texts
        self._folder = folder
        self._environment = environment(settings)
        self._written: deque[Path] = deque()
        self._pending = threading.Semaphore(MAX_PENDING)
        self._n_unnamed = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tahr-dumps")

    def request_finished(self, record: RequestRecord) -> None:
        """Queue a request to be written."""
        if record.generation is None and (record.route not in ROUTES or record.method != "POST"):
            return
        if not self._pending.acquire(blocking=False):
            log.warning("A request is not dumped: %d others wait to be written.", MAX_PENDING)
            return
        self._n_unnamed += record.generation is None
        kind = "refused" if record.status >= 400 else "request"
        unnamed = f"{kind}-{int(time.time() * 1e3)}-{self._n_unnamed}"
        self._pool.submit(self._write, record, record.generation.id if record.generation else unnamed)

    def close(self) -> None:
        """Write what is still pending."""
        self._pool.shutdown()

    def _write(self, record: RequestRecord, name: str) -> None:
        try:
            files = contents(record, self._texts) | {"environment": self._environment}
            write(self._folder / name, files, {"id": name, "route": record.route, "texts": self._texts})
            self._written.append(self._folder / name)
            if len(self._written) > MAX_DUMPS:
                shutil.rmtree(self._written.popleft(), ignore_errors=True)
        except Exception as error:
            log.error("A request could not be dumped: %s", type(error).__name__)
        finally:
            self._pending.release()


def open_dumps(folder: str | None, texts: bool, settings: dict[str, Any]) -> RequestDumps | None:
    """None unless they are wanted. `settings` are the server's, without secrets."""
    if folder is None:
        if texts:
            raise ConfigError("request_dump_texts needs a folder for the texts: set request_dump_dir too.")
        return None
    return RequestDumps(Path(folder).expanduser(), texts, settings)


# ---- what is in them ----------------------------------------------------------------------------------------


def contents(record: RequestRecord, texts: bool) -> dict[str, Any]:
    """All files of a dump but the one about the machine, by name."""
    made: dict[str, Any] = {
        "request": request_of(record.body, texts),
        "headers": {k.decode("latin-1"): header(k, v) for k, v in record.headers.items()},
        "sampling": {},
        "model": {},
        "prompt": {},
        "response": {"status": record.status},
        "timings": {"seconds": record.ended - record.began},
    }
    if record.generation:
        for name, facts in generation_contents(record.generation, texts).items():
            made[name] |= facts
    return made


def generation_contents(generation: GenerationRecord, texts: bool) -> dict[str, dict[str, Any]]:
    """Contents of each file that a generation adds."""
    params = generation.params
    private = {} if texts else {"stop": len(params.stop), "cache_salt": REMOVED}
    prompt: dict[str, Any] = {"n_tokens": [len(tokens) for tokens in generation.prompts]}
    response: dict[str, Any] = {
        "finish": generation.finish or "error",
        "n_prompt": generation.n_prompt_tokens,
        "n_tokens": generation.n_tokens,
        "n_cached": generation.n_cached,
        "stream": generation.stream,
    }
    if texts:
        prompt["tokens"] = generation.prompts
        response["texts"] = ["".join(parts) for _, parts in sorted((generation.texts or {}).items())]
    timings = [
        {"queue_s": s.queue_s, "prefill_s": s.prefill_s, "decode_s": s.decode_s, "n_preempted": s.n_preempted}
        for s in generation.stats
    ]
    return {
        "sampling": sampling_values(params) | private,
        "model": {"name": generation.model, "backend": generation.backend, "context": generation.context_size},
        "prompt": prompt,
        "response": response,
        "timings": {"answers": timings},
    }


def header(name: bytes, value: bytes) -> str:
    return value.decode("latin-1") if name.decode("latin-1").lower() in PLAIN_HEADERS else REMOVED


def request_of(data: bytes, texts: bool) -> Any:
    """The body; without texts, its shape."""
    try:
        body = json.loads(data)
    except ValueError:
        return {"not_json": len(data)}
    return without_images(body) if texts else shape(body)


def without_images(value: Any) -> Any:
    """A body with each image replaced by its length."""
    if isinstance(value, str):
        return {"image_chars": len(value)} if value.startswith("data:image/") else value
    if isinstance(value, dict):
        return {key: without_images(inner) for key, inner in value.items()}
    return [without_images(inner) for inner in value] if isinstance(value, list) else value


def shape(value: Any, field: str = "") -> Any:
    """The shape of a value: its texts replaced by their lengths."""
    if isinstance(value, str):
        return value if field in PLAIN_FIELDS and len(value) < 32 else {"chars": len(value)}
    if isinstance(value, dict) and field in FREE:
        return {"members": len(value)}
    if isinstance(value, dict):
        return {key if key in KNOWN else "(unknown)": shape(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        if field in TOKENS and value and all(isinstance(each, int) for each in value):
            return {"tokens": len(value)}
        return [shape(inner, field) for inner in value]
    return value


def environment(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "tahr": __version__,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "system": platform.system(),
        "settings": settings,
    }


# ---- on disk ------------------------------------------------------------------------------------------------


def write(folder: Path, texts: dict[str, Any], about: dict[str, Any]) -> None:
    """All files, then the manifest with their digests; a folder without one was not finished."""
    folder.mkdir()
    digests = {}
    for name in FILES:
        data = json.dumps(texts[name], indent=1, default=str).encode()
        (folder / f"{name}.json").write_bytes(data)
        digests[f"{name}.json"] = hashlib.sha256(data).hexdigest()
    manifest = {"format": FORMAT, "created": int(time.time()), **about, "sha256": digests}
    (folder / MANIFEST).write_bytes(json.dumps(manifest, indent=1).encode())


def read(folder: Path) -> dict[str, Any]:
    """All files of a bundle by name, checked."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: name one that --request-dump-dir has filled.")
    missing = [name for name in NAMES if not (folder / name).is_file()]
    if missing:
        raise CorruptFile(f"{folder} is no whole bundle: {', '.join(missing)} is missing.")
    data = {name: content_of(folder / name) for name in NAMES}
    found = {name.removesuffix(".json"): parsed(folder / name, text) for name, text in data.items()}
    manifest = found["manifest"]
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CorruptFile(f"{folder / MANIFEST} is not of format {FORMAT}: another version of Tahr wrote it.")
    digests = manifest.get("sha256")
    if not isinstance(digests, dict):
        raise CorruptFile(f"{folder / MANIFEST} maps no files to their digests: dump the request again.")
    for name, text in data.items():
        if name != MANIFEST and digests.get(name) != hashlib.sha256(text).hexdigest():
            raise CorruptFile(f"{folder / name} has changed since it was written: its digest is another.")
    check_secrets(found["headers"], folder)
    return found


def content_of(path: Path) -> bytes:
    try:
        return read_bytes(path, MAX_FILE_BYTES)
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read ({error.strerror}): dump the request again.") from error


def parsed(path: Path, data: bytes) -> Any:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} is not JSON ({error}).") from error
    level = [tree]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in members(each)]
        if not level:
            return tree
    raise CorruptFile(f"{path} is nested more than {MAX_DEPTH} deep, as no bundle is.")


def members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def check_secrets(headers: Any, folder: Path) -> None:
    if not isinstance(headers, dict):
        raise CorruptFile(f"{folder / 'headers.json'} does not map names to values.")
    for name, value in headers.items():
        if str(name).lower() not in PLAIN_HEADERS and value != REMOVED:
            raise CorruptFile(f"{folder / 'headers.json'} holds the value of {name}, which may be a secret.")
