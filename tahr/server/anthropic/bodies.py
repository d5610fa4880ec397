"""The bodies of Anthropic's API. A field is honoured, known to change nothing, or refused by name."""

from typing import Annotated, Any

from msgspec import Struct

from tahr.server.bodies.decoding import Inert, Refused, described
from tahr.text.replies.thinking import EFFORTS
from tahr.text.tool_calls.tools import NAME

BLOCKS = ("text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result")
TTLS = ("5m", "1h")
SOURCES = ("base64", "url", "file")


class CacheControl(Struct, kw_only=True):
    """A mark behind which a prompt is to be found again. The prefix cache needs none: marks change what is counted."""

    type: Annotated[str, described(enum=("ephemeral",))]
    ttl: Annotated[str, described(enum=TTLS)] | None = None
    scope: Inert = None


class ImageSource(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where an image is; one that is not sent along is refused."""

    type: Annotated[str, described(enum=SOURCES)]
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


class ContentBlock(Struct, kw_only=True):
    """A block of a message. Which fields count follows from its type; a type that cannot be read is refused."""

    type: Annotated[str, described(enum=BLOCKS)]
    text: str | None = None  # field of a text
    source: ImageSource | None = None  # field of an image
    thinking: str | None = None  # field of thinking
    id: str | None = None  # field of a tool's use
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None  # field of a tool's result
    content: "str | list[ContentBlock] | None" = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class AnthropicMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    role: Annotated[str, described(enum=("user", "assistant", "system"))]
    content: str | list[ContentBlock]
    id: Inert = None  # clients send replies back as they got them
    type: Inert = None
    model: Inert = None
    stop_reason: Inert = None
    stop_sequence: Inert = None
    usage: Inert = None


class AnthropicTool(Struct, kw_only=True):
    """A tool; one that runs on Anthropic's servers has another type, and is refused."""

    name: Annotated[str, described(pattern=f"^{NAME.pattern}$")]
    type: Annotated[str, described(enum=("custom",))] | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    input_examples: list[dict[str, Any]] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    eager_input_streaming: Inert = None  # arguments always come as they are generated
    cache_control: CacheControl | None = None


class AnthropicToolChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Annotated[str, described(enum=("auto", "any", "tool", "none"))]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Annotated[str, described(enum=("enabled", "disabled", "adaptive"))]
    budget_tokens: Annotated[int, described(minimum=1)] | None = None
    display: Annotated[str, described(enum=("summarized", "omitted"))] | None = None


class OutputFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Annotated[str, described(enum=("json_schema",))]
    schema: dict[str, Any] | None = None


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Annotated[str, described(enum=EFFORTS[1:])] | None = None
    format: OutputFormat | None = None


class CountTokensBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/messages/count_tokens."""

    messages: Annotated[list[AnthropicMessage], described(minItems=1)]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # its first place in the API

    cache_control: CacheControl | None = None
    metadata: Inert = None
    diagnostics: Inert = None
    user_profile_id: Inert = None
    workspace_id: Inert = None
    context_management: Annotated[Any, described(enum=(None, {"edits": []}))] = (
        None  # this one and those below are refused unless they change nothing
    )
    mcp_servers: Annotated[Any, described(enum=(None, []))] = None
    speed: Annotated[Any, described(enum=(None, "standard"))] = None
    compaction: Refused = None
    fallbacks: Annotated[Any, described(enum=(None, []))] = None
    thread: Refused = None


class MessagesBody(CountTokensBody, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: Annotated[int, described(minimum=1)]
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None

    service_tier: Inert = None
    container: Refused = None
    inference_geo: Refused = None
