"""The bodies of replies, in the shape of llama.cpp's server."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from tahr.server.http.errors import TYPES, HttpError

NATIVE_TYPES = {400: "invalid_request_error", 404: "not_found_error", 500: "server_error", 503: "unavailable_error"}


class NativeErrorBody(Struct):
    code: int
    message: str
    type: str


class NativeError(Struct):
    """The body of every response that is not a success."""

    error: NativeErrorBody

    @classmethod
    def of(cls, error: HttpError, request_id: str) -> "NativeError":
        kind = NATIVE_TYPES.get(error.status) or TYPES[error.status]
        kind = "exceed_context_size_error" if error.code == "context_length_exceeded" else kind
        return cls(NativeErrorBody(error.status, error.message, kind))


class NativeTop(Struct):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class NativeProbability(Struct):
    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[NativeTop]


class NativeTimings(Struct):
    """Milliseconds and tokens per second of one reply."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class NativeChunk(Struct, kw_only=True):
    """A part of a stream."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: NativeTimings | UnsetType = UNSET
    completion_probabilities: list[NativeProbability] | UnsetType = UNSET


class NativeReply(NativeChunk, kw_only=True):
    """The reply of /completion and /infill, and the last part of their streams."""

    model: str
    prompt: str
    generation_settings: dict[str, Any]
    has_new_line: bool
    truncated: bool
    stop_type: str  # eos, limit, word or none
    stopping_word: str
    tokens_cached: int


class AdapterView(Struct):
    """An adapter that a request may name by its number."""

    id: int
    path: str
    scale: float


class SlotView(Struct):
    """A place in the batch; which request has it is not shown."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class PropsReply(Struct, kw_only=True):
    """The reply of /props."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    modalities: dict[str, bool]
