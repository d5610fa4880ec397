"""The bodies of replies, in the shape Ollama's clients expect."""

from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from tahr.server.http.errors import HttpError
from tahr.server.replies.logprobs import TokenLogprob


class OllamaError(Struct):
    """The body of every response that is not a success."""

    error: str

    @classmethod
    def of(cls, error: HttpError, request_id: str) -> "OllamaError":
        return cls(error.message)


class OllamaCalledFunction(Struct):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Struct):
    id: str
    function: OllamaCalledFunction


class OllamaReplyMessage(Struct):
    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class Timings(Struct, kw_only=True):
    """Figures of the last part of a reply; durations in nanoseconds."""

    model: str
    created_at: str
    done: bool = True
    done_reason: str = "stop"
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class OllamaChatReply(Timings, kw_only=True):
    """The reply of /api/chat."""

    message: OllamaReplyMessage


class OllamaGenerateReply(Timings, kw_only=True):
    """The reply of /api/generate."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaEmbedReply(Struct):
    """The reply of /api/embed."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsReply(Struct):
    """The reply of /api/embeddings."""

    embedding: list[float]


class ModelDetails(Struct):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Struct, kw_only=True):
    """A model of /api/tags; of one that is loaded /api/ps tells more."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    modified_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class OllamaModelList(Struct):
    models: list[OllamaModel]


class ShowReply(Struct, kw_only=True):
    """The reply of /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(Struct):
    version: str  # version of Ollama, whose routes these are
    tahr: str


class PullStatus(Struct, omit_defaults=True):
    """A line of /api/pull."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
    error: str = ""


def timestamp(seconds: float | None = None) -> str:
    """A moment as Ollama writes it; now, if none is given."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat().replace("+00:00", "Z")
