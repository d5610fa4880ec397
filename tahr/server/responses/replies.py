"""The bodies of replies, in the shape clients of OpenAI's Responses API expect."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from tahr.server.replies.formatter import Usage


class OutputText(Struct):
    text: str
    type: str = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputMessage(Struct):
    id: str
    status: str
    content: list[OutputText]
    type: str = "message"
    role: str = "assistant"


class ThoughtText(Struct):
    text: str
    type: str  # reasoning_text or summary_text


class ReasoningItem(Struct):
    id: str
    status: str
    summary: list[ThoughtText]
    content: list[ThoughtText] | UnsetType = UNSET
    type: str = "reasoning"
    encrypted_content: None = None


class FunctionCallItem(Struct):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET
    type: str = "function_call"


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem


class InputTokenDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokenDetails(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "ResponseUsage":
        cached = InputTokenDetails(usage.prompt_tokens_details.cached_tokens)
        reasoning = OutputTokenDetails(usage.completion_tokens_details.reasoning_tokens)
        return cls(usage.prompt_tokens, cached, usage.completion_tokens, reasoning, usage.total_tokens)


class ResponseFailure(Struct):
    code: str
    message: str


class ResponseReply(Struct, kw_only=True):
    """The reply of /v1/responses; what a request said is repeated."""

    id: str
    created_at: int
    model: str
    status: str = "in_progress"
    output: list[Any] = []  # items
    usage: ResponseUsage | None = None
    error: ResponseFailure | None = None
    incomplete_details: dict[str, str] | None = None
    completed_at: int | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    parallel_tool_calls: bool = True
    tool_choice: Any = "auto"
    tools: list[Any] = []
    reasoning: dict[str, str | None]
    text: dict[str, Any]
    metadata: dict[str, str] = {}
    store: bool = True
    object: str = "response"
    background: bool = False
    truncation: str = "disabled"
    service_tier: str = "default"
    max_tool_calls: int | None = None
    top_logprobs: int = 0


class ItemList(Struct):
    """The reply of /v1/responses/ID/input_items, and of GET /v1/responses."""

    data: list[Any]
    first_id: str
    last_id: str
    has_more: bool = False
    object: str = "list"


class DeletedResponse(Struct):
    id: str
    deleted: bool = True
    object: str = "response"


class InputTokensReply(Struct):
    """The reply of /v1/responses/input_tokens."""

    input_tokens: int
    object: str = "response.input_tokens"
