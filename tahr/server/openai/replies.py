"""The bodies of replies, in the shape OpenAI's clients expect."""

from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, Struct, UnsetType


class CachedDetails(Struct):
    cached_tokens: int


class ReasoningDetails(Struct):
    reasoning_tokens: int = 0


class Usage(Struct):
    """What a request cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedDetails
    completion_tokens_details: ReasoningDetails


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(Struct):
    logprob: float
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CalledFunction(Struct):
    name: str
    arguments: str


class ToolCallReply(Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class ChatMessage(Struct):
    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallReply] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatReply(Struct):
    """The reply of /v1/chat/completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET  # here, as vLLM has it: a chat has one prompt


class TextChoice(Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextReply(Struct):
    """The reply of /v1/completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: str


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class Embedding(Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingReply(Struct):
    """The reply of /v1/embeddings."""

    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
    object: str = "list"


class ModelCard(Struct):
    id: str
    created: int
    context_size: int | None  # None: the model was not loaded yet
    root: str  # the base model, where an adapter is added to one
    parent: str | None = None  # the same; None: it is a base model
    state: str = "loaded"  # or loading, unloading, unloaded: requests load it
    object: str = "model"
    owned_by: str = "tahr"
    type: str = "model"  # this and what follows are Anthropic's
    display_name: str = ""
    created_at: str = ""

    def __post_init__(self) -> None:
        self.display_name = self.display_name or self.id
        self.created_at = self.created_at or datetime.fromtimestamp(self.created, UTC).isoformat()


class ModelList(Struct):
    """All models. The last three fields are Anthropic's: there is one page."""

    data: list[ModelCard]
    object: str = "list"
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class TokenPiece(Struct):
    id: int
    piece: str | list[int]  # bytes, where they are no text by themselves


class TokenizeReply(Struct):
    tokens: list[int | TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeReply(Struct):
    prompt: str
    content: str


class TemplateReply(Struct):
    prompt: str


class Version(Struct):
    version: str


class HealthReply(Struct):
    """How the server is."""

    status: str
    timestamp: float
    version: str
    engine: dict[str, Any]
    scheduler: dict[str, Any]
    admission: dict[str, Any]
    cache: dict[str, Any]
    lora: dict[str, Any]
    config: dict[str, Any]
    models: dict[str, Any]
