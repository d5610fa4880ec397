"""The bodies of replies, in the shape Anthropic's clients expect."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from tahr.server.http.errors import TYPES, HttpError
from tahr.server.replies.formatter import Usage

# Thinking is not signed here, and nothing depends on a signature; clients drop a block that has none.
SIGNATURE = "tahr"
ERROR_TYPES = TYPES | {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}  # Anthropic's own names


class ErrorDetail(Struct):
    type: str
    message: str
    details: dict[str, str] | UnsetType = UNSET


class AnthropicError(Struct):
    """The body of every response that is not a success."""

    error: ErrorDetail
    request_id: str
    type: str = "error"

    @classmethod
    def of(cls, error: HttpError, request_id: str) -> "AnthropicError":
        details = {"error_code": error.code} if error.code else UNSET
        return cls(ErrorDetail(ERROR_TYPES[error.status], error.message, details), request_id)


class TextBlock(Struct):
    text: str
    type: str = "text"


class ThinkingBlock(Struct):
    thinking: str
    signature: str = SIGNATURE
    type: str = "thinking"


class ToolUseBlock(Struct):
    id: str
    name: str
    input: dict[str, Any]
    type: str = "tool_use"


Block = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(Struct):
    thinking_tokens: int


class MessageUsage(Struct):
    """Token counts of a request. The prompt is the sum of `input_tokens` and those of the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens_details: ThinkingTokens | None = None

    @classmethod
    def of(cls, usage: Usage, page_size: int = 0) -> "MessageUsage":
        """The counts. With a page size, whole pages of the prompt that were not in the cache count as put into it."""
        n_cached = usage.prompt_tokens_details.cached_tokens
        n_kept = usage.prompt_tokens // page_size * page_size if page_size else 0
        n_written = max(0, n_kept - n_cached)
        thinking = ThinkingTokens(usage.completion_tokens_details.reasoning_tokens)
        n_left = usage.prompt_tokens - n_cached - n_written
        return cls(n_left, usage.completion_tokens, n_cached, n_written, thinking)


class MessageReply(Struct):
    """The reply of /v1/messages."""

    id: str
    model: str
    content: list[Any]  # blocks
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


class CountTokensReply(Struct):
    """The reply of /v1/messages/count_tokens."""

    input_tokens: int
