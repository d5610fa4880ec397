"""The bodies of requests for files and batches, and of the replies."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from tahr.server.bodies.decoding import described

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
PURPOSE = "batch"
RESULTS = "batch_output"  # the purpose of a file of results
WINDOW = "24h"
LEAST_AGE_S = 3600
MOST_AGE_S = 2_592_000
MOST_PAIRS = 16  # pairs of metadata

Upload = Annotated[Any, described(type="string", format="binary")]
Word = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=512)]


class ExpiresAfter(Struct, forbid_unknown_fields=True):
    """How long a file is kept."""

    anchor: Annotated[str, described(enum=["created_at"])]
    seconds: Annotated[int, Meta(ge=LEAST_AGE_S, le=MOST_AGE_S)]


class FileBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of /v1/files."""

    file: Upload
    purpose: Annotated[str, described(enum=[PURPOSE])]
    expires_after: ExpiresAfter | None = None


class BatchBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A batch that is to be made."""

    input_file_id: str
    endpoint: Annotated[str, described(enum=list(ENDPOINTS))]
    completion_window: Annotated[str, described(enum=[WINDOW])]
    metadata: Annotated[dict[Word, Text], Meta(max_length=MOST_PAIRS)] | None = None
    output_expires_after: ExpiresAfter | None = None


class FileReply(Struct):
    """A file."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"


class FileList(Struct):
    """A page of files."""

    data: list[FileReply]
    first_id: str
    last_id: str
    has_more: bool
    object: str = "list"


class DeletedFile(Struct):
    id: str
    object: str = "file"
    deleted: bool = True


class ShownError(Struct):
    """A fault of a line, or of a batch."""

    code: str
    message: str
    line: int | None
    param: str | None


class ErrorList(Struct):
    data: list[ShownError]
    object: str = "list"


class RequestCounts(Struct):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchReply(Struct, kw_only=True):
    """A batch."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    object: str = "batch"
    metadata: dict[str, str] | None = None
    errors: ErrorList | UnsetType = UNSET
    output_file_id: str | UnsetType = UNSET
    error_file_id: str | UnsetType = UNSET
    in_progress_at: int | UnsetType = UNSET
    finalizing_at: int | UnsetType = UNSET
    completed_at: int | UnsetType = UNSET
    failed_at: int | UnsetType = UNSET
    expired_at: int | UnsetType = UNSET
    cancelling_at: int | UnsetType = UNSET
    cancelled_at: int | UnsetType = UNSET


class BatchList(Struct):
    """A page of batches."""

    data: list[BatchReply]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
