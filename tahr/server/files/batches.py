"""/v1/batches: to have the requests of a file answered below everything else, and to see how far that is."""

from typing import Any

import msgspec

from tahr.server.bodies.decoding import decode
from tahr.server.files.bodies import (
    ENDPOINTS,
    PURPOSE,
    WINDOW,
    BatchBody,
    BatchList,
    BatchReply,
    ErrorList,
    RequestCounts,
    ShownError,
)
from tahr.server.files.files import files_of
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.guard import owner_of
from tahr.server.http.query import page_of, query_of
from tahr.server.http.request import HttpRequest
from tahr.server.kept.batch_store import BatchRecord, BatchStore, BatchTerms
from tahr.server.kept.file_store import new_id
from tahr.server.kept.folder import unwritten
from tahr.server.replies.served import caller_of
from tahr.server.state.state import ServerState

BODY = msgspec.json.Decoder(BatchBody)
BELOW = "/v1/batches/"
WINDOW_S = 86_400


def batches_of(state: ServerState) -> BatchStore:
    files_of(state)
    assert state.batches, "there are batches where there are files"
    return state.batches


async def create_batch(request: HttpRequest, state: ServerState) -> None:
    """Have the requests of a file answered."""
    store = batches_of(state)
    state.models.check_ready()
    body = decode(BODY, await request.body())
    check_values(body)
    owner = owner_of(request)
    sent = files_of(state).get(owner, body.input_file_id)
    if sent.purpose != PURPOSE:
        raise bad_field("input_file_id", f"{sent.id} has results of a batch: upload a file of requests.")
    now = store.clock()
    age_s = body.output_expires_after.seconds if body.output_expires_after else None
    record = BatchRecord(
        id=new_id("batch_"),
        owner=owner,
        salt=caller_of(request, state).salt,
        terms=BatchTerms(body.endpoint, sent.id, body.completion_window, body.metadata, age_s),
        output_file_id=new_id("file-"),
        error_file_id=new_id("file-"),
        created_at=now,
        expires_at=int(now) + WINDOW_S,
    )
    try:
        store.add(record)
    except OSError as error:
        raise unwritten(error) from error
    await request.respond_json(shown(record))


def check_values(body: BatchBody) -> None:
    if body.endpoint not in ENDPOINTS:
        message = f"endpoint is {body.endpoint[:256]!r}, but it must be one of {', '.join(ENDPOINTS)}."
        raise bad_field("endpoint", message)
    if body.completion_window != WINDOW:
        raise bad_field("completion_window", f"completion_window must be {WINDOW!r}.")
    if body.output_expires_after and body.output_expires_after.anchor != "created_at":
        raise bad_field("output_expires_after.anchor", "output_expires_after.anchor must be created_at.")


def shown(record: BatchRecord) -> BatchReply:
    terms, progress = record.terms, record.progress
    reply = BatchReply(
        id=record.id,
        endpoint=terms.endpoint,
        input_file_id=terms.input_file_id,
        completion_window=terms.completion_window,
        status=record.status,
        created_at=int(record.created_at),
        expires_at=record.expires_at,
        request_counts=RequestCounts(progress.n_lines, progress.n_completed, progress.n_failed),
        metadata=terms.metadata,
    )
    if record.errors:
        reply.errors = ErrorList([ShownError(each.code, each.message, each.line, each.param) for each in record.errors])
    if progress.has_output:
        reply.output_file_id = record.output_file_id
    if progress.has_errors:
        reply.error_file_id = record.error_file_id
    times: dict[str, Any] = {f"{status}_at": at for status, at in record.times.items()}
    return msgspec.structs.replace(reply, **times)


async def get_batch(request: HttpRequest, state: ServerState) -> None:
    """A batch, and how far it is."""
    await request.respond_json(shown(batches_of(state).get(owner_of(request), request.path.removeprefix(BELOW))))


async def list_batches(request: HttpRequest, state: ServerState) -> None:
    """All batches of a key, the newest first; `limit` (20) after `after`."""
    stored = batches_of(state).all_of(owner_of(request))
    page = page_of(query_of(request, ("limit", "after")), [each.id for each in stored])
    data = [shown(stored[place]) for place in page.places]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    await request.respond_json(BatchList(data, first, last, page.has_more))


async def cancel_batch(request: HttpRequest, state: ServerState) -> None:
    """End a batch. Replies that are there can be read when it is cancelled."""
    store = batches_of(state)
    record = store.get(owner_of(request), request.path.removeprefix(BELOW).removesuffix("/cancel"))
    if record.is_finished:
        message = f"The batch is {record.status}: there is nothing left to cancel."
        raise HttpError(409, message, code="batch_finished")
    if record.status != "cancelling":
        try:
            store.enter(record, "cancelling")
        except OSError as error:
            raise unwritten(error) from error
    await request.respond_json(shown(record))
