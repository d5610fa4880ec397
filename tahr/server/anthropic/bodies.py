"""The bodies of Anthropic's API. A field is honoured, known to change nothing, or refused by name."""

from typing import Any

from msgspec import Struct

from tahr.server.openai.bodies import Inert


class ContentBlock(Struct, kw_only=True):
    """A block of a message. Which fields count follows from its type; a type that cannot be read is refused."""

    type: str
    text: str | None = None  # of a text
    thinking: str | None = None  # of thinking
    id: str | None = None  # of a tool's use
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None  # of a tool's result
    content: "str | list[ContentBlock] | None" = None
    is_error: bool | None = None
    cache_control: Inert = None


class AnthropicMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | list[ContentBlock]
    id: Inert = None  # clients send replies back as they got them
    type: Inert = None
    model: Inert = None
    stop_reason: Inert = None
    stop_sequence: Inert = None
    usage: Inert = None


class AnthropicTool(Struct, kw_only=True):
    """A tool; one that runs on Anthropic's servers has another type, and is refused."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    input_examples: list[dict[str, Any]] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    eager_input_streaming: Inert = None  # arguments always come as they are generated
    cache_control: Inert = None


class AnthropicToolChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/messages/count_tokens."""

    messages: list[AnthropicMessage]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # where it stood at first

    cache_control: Inert = None
    metadata: Inert = None
    diagnostics: Inert = None
    user_profile_id: Inert = None
    workspace_id: Inert = None
    context_management: Any = None  # these are refused where they ask for something
    mcp_servers: Any = None
    speed: Any = None
    compaction: Any = None
    fallbacks: Any = None
    thread: Any = None


class MessagesBody(CountTokensBody, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: int
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None

    service_tier: Inert = None
    container: Any = None
    inference_geo: Any = None
