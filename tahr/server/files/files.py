"""/v1/files: to upload a file of requests, and to read what came of it."""

import os
import re
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from tahr.regular_file import open_regular
from tahr.server.bodies.decoding import wrong_field
from tahr.server.files.bodies import PURPOSE, DeletedFile, ExpiresAfter, FileList, FileReply
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.form_stream import FormStream
from tahr.server.http.guard import owner_of
from tahr.server.http.query import page_of, query_of
from tahr.server.http.request import HttpRequest
from tahr.server.http.threads import to_the_end
from tahr.server.kept.file_store import ArrivingFile, FileRecord, FileStore
from tahr.server.kept.folder import unwritten
from tahr.server.state.state import ServerState

BELOW = "/v1/files/"
MAX_LISTED = 10_000
PIECE_BYTES = 1 << 20  # bytes that are written at a time
READ_BYTES = 1 << 16  # bytes that are read and sent at a time: many clients may read
FORM_BYTES = 1 << 18  # limit on a form beside its file
MOST_NAME_CHARS = 255
EXPIRY = re.compile(r"expires_after\[(anchor|seconds)\]")
CONTENT = "application/octet-stream"


def files_of(state: ServerState) -> FileStore:
    """The store, if the server has any."""
    if state.files is None:
        message = "This server keeps no files and batches: start it with --state-dir DIR."
        raise HttpError(400, message, code="no_state_dir", headers={"connection": "close"})
    return state.files


async def upload(request: HttpRequest, state: ServerState) -> None:
    """Keep a file of requests. It is written while it comes, so that its size takes no memory."""
    store = files_of(state)
    state.models.check_ready()
    try:
        arriving = store.begin(owner_of(request))
    except OSError as error:
        raise unwritten(error) from error
    try:
        form = FormStream(request.header("content-type"), "file", arriving.unwritten.extend)
        await request.stream_body(partial(take, store, arriving, form), store.limits.max_file_bytes + FORM_BYTES)
        record = await written(store, arriving, form)
    except OSError as error:
        raise unwritten(error) from error
    finally:
        store.discard(arriving)
    await request.respond_json(shown(record))


async def take(store: FileStore, arriving: ArrivingFile, form: FormStream, data: bytes) -> None:
    """The next piece of a form."""
    form.feed(data)
    if len(arriving.unwritten) >= PIECE_BYTES:
        await write_pieces(store, arriving)


async def write_pieces(store: FileStore, arriving: ArrivingFile) -> None:
    data = bytes(arriving.unwritten)
    arriving.unwritten.clear()
    store.grow(arriving, len(data))
    await to_the_end(partial(arriving.file.write, data))


async def written(store: FileStore, arriving: ArrivingFile, form: FormStream) -> FileRecord:
    """The record of a form's file, which is complete."""
    form.finish()
    if form.filename is None:
        raise bad_field("file", "The field file is missing: it is required.")
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise bad_field("purpose", "The field purpose is missing: it is required.")
    if purpose != PURPOSE:
        raise bad_field("purpose", f"purpose is {purpose[:60]!r}, but files are for batches here: say {PURPOSE!r}.")
    age_s = age_of({name: value for name, value in form.fields.items() if name != "purpose"})
    await write_pieces(store, arriving)
    record = store.record(arriving.id, arriving.owner, plain_name(form.filename), PURPOSE, arriving.n_bytes, age_s)
    store.end(arriving, record)
    return record


def age_of(fields: dict[str, str]) -> int | None:
    """How long a file is to be kept; None: as long as the server keeps any."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        match = EXPIRY.fullmatch(name)
        if not match:
            message = f"The field {name[:60]} is not one this route knows: leave it out."
            raise bad_field(name[:60], message, "unknown_field")
        found[match[1]] = value
    if not found:
        return None
    if found.get("anchor", "created_at") != "created_at":
        raise bad_field("expires_after.anchor", "expires_after[anchor] must be created_at.")
    try:
        return msgspec.convert(found, ExpiresAfter, strict=False).seconds
    except msgspec.ValidationError as error:
        raise wrong_field(f"{str(error).removesuffix('`')}".replace("$", "$.expires_after")) from error


def plain_name(sent: str) -> str:
    """The last part of a client's name for a file. It is shown and leads nowhere: files lie under their ids."""
    name = re.split(r"[/\\]", sent)[-1]
    printable = "".join(letter if letter.isprintable() else "_" for letter in name)
    return printable[:MOST_NAME_CHARS].strip() or "file"


def shown(record: FileRecord) -> FileReply:
    about = int(record.created_at), record.expires_at, record.filename, record.purpose
    return FileReply(record.id, record.n_bytes, *about)


def id_of(request: HttpRequest, suffix: str = "") -> str:
    return request.path.removeprefix(BELOW).removesuffix(suffix)


async def list_files(request: HttpRequest, state: ServerState) -> None:
    """All files of a key, the newest first unless `order` is asc; `limit` (10,000) after `after`, of one `purpose`."""
    requested = query_of(request, ("limit", "order", "after", "purpose"))
    purpose = requested.get("purpose")
    stored = [each for each in files_of(state).all_of(owner_of(request)) if purpose in (None, each.purpose)]
    page = page_of(requested, [each.id for each in stored], MAX_LISTED, MAX_LISTED)
    data = [shown(stored[place]) for place in page.places]
    first, last = (data[0].id, data[-1].id) if data else ("", "")
    await request.respond_json(FileList(data, first, last, page.has_more))


async def get_file(request: HttpRequest, state: ServerState) -> None:
    """Facts about a file."""
    await request.respond_json(shown(files_of(state).get(owner_of(request), id_of(request))))


async def delete_file(request: HttpRequest, state: ServerState) -> None:
    """Forget a file that no unfinished batch needs."""
    store = files_of(state)
    record = store.get(owner_of(request), id_of(request))
    user = state.batches.uses(record.id) if state.batches else None
    if user:
        message = f"The batch {user.id} still needs this file: wait for its end, or cancel it."
        raise HttpError(409, message, code="file_in_use")
    store.remove(record.id)
    await request.respond_json(DeletedFile(record.id))


async def get_content(request: HttpRequest, state: ServerState) -> None:
    """The bytes of a file. One that is deleted meanwhile is sent to its end."""
    store = files_of(state)
    record = store.get(owner_of(request), id_of(request, "/content"))
    if request.method == "HEAD":
        return await request.respond(b"", CONTENT, headers={"content-length": str(record.n_bytes)})
    with state.admission.place(request):
        return await send_content(request, record.id, store.data_path(record.id))


async def send_content(request: HttpRequest, id: str, path: Path) -> None:
    try:
        file = await to_the_end(partial(opened, path), BinaryIO.close)
    except OSError as error:
        message = f"The file {id} cannot be read ({error.strerror}): somebody has taken it away."
        raise HttpError(500, message, code="file_lost") from error
    with file:
        await request.begin_stream({"content-type": CONTENT})
        with request.cancellable():
            while data := await to_the_end(partial(file.read, READ_BYTES)):
                await request.send(data)
    await request.end_stream()


def opened(path: Path) -> BinaryIO:
    return os.fdopen(open_regular(path), "rb")
