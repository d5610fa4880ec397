"""The bodies of replies, in the shape OpenAI's clients expect."""

from msgspec import UNSET, Struct, UnsetType

from tahr.server.replies.formatter import Usage
from tahr.server.replies.logprobs import ChatLogprobs, PromptLogprobs, TextLogprobs


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
    incomplete_tool_call: CalledFunction | UnsetType = UNSET  # the reply ended in its middle


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
