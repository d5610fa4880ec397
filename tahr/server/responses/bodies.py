"""The bodies of OpenAI's Responses API. A field is honoured, known to change nothing, or refused by name."""

from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from tahr.server.bodies.decoding import Inert, Refused, described
from tahr.text.replies.thinking import EFFORTS
from tahr.text.tool_calls.tools import NAME

ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
PARTS = (*TEXTS, "input_image")
SIDES = ("user", "assistant", "system", "developer")
FUNCTION = {
    "type": "object",
    "properties": {"type": {"enum": ["function"]}, "name": {"type": "string", "pattern": f"^{NAME.pattern}$"}},
    "required": ["type", "name"],
}
SUMMARIES = ("auto", "concise", "detailed", "none")


class InputPart(Struct, omit_defaults=True):
    """A part of an item; what is no text is refused by its type."""

    type: Annotated[str, described(enum=PARTS)]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None  # field of an image
    detail: str | None = None
    file_id: str | None = None


class InputItem(Struct, kw_only=True, omit_defaults=True):
    """An item of a conversation. Which fields count follows from its type; one that cannot be read is refused."""

    type: Annotated[str, described(enum=ITEMS)] = "message"
    id: str | None = None
    role: Annotated[str, described(enum=SIDES)] | None = None  # field of a message
    content: str | list[InputPart] | None = None  # field of a message, or of reasoning
    summary: list[InputPart] | None = None  # field of reasoning
    call_id: str | None = None  # field of a call and its output
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class ReasoningConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Annotated[str, described(enum=EFFORTS)] | None = None
    summary: Annotated[str, described(enum=SUMMARIES)] | None = None
    generate_summary: Annotated[str, described(enum=SUMMARIES)] | None = None  # old name of `summary`


class TextFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Annotated[str, described(enum=("text", "json_object", "json_schema"))]
    name: str | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Annotated[str, described(enum=("medium",))] | None = None


class InputTokensBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/responses/input_tokens."""

    input: str | list[InputItem] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[dict[str, Any]], described(items=FUNCTION)] | None = None
    tool_choice: Annotated[str, described(enum=("auto", "none", "required"))] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    truncation: Annotated[str, described(enum=("disabled",))] | None = None
    conversation: Refused = None  # refused
    personality: Refused = None


class ResponsesBody(InputTokensBody, kw_only=True):
    """The body of /v1/responses."""

    max_output_tokens: Annotated[int, described(minimum=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    store: bool | None = None
    include: Annotated[list[str], described(items={"enum": ["reasoning.encrypted_content"]})] | None = None
    metadata: dict[str, str] | None = None

    background: Annotated[bool, described(enum=(False,))] | None = (
        None  # this one and those below are refused unless they change nothing
    )
    top_logprobs: Annotated[int, described(enum=(0,))] | None = None
    prompt: Refused = None
    context_management: Annotated[Any, described(enum=(None, []))] = None
    moderation: Refused = None

    max_tool_calls: Inert = None  # counts calls of tools that run on the server: there are none
    stream_options: Inert = None
    user: Inert = None
    service_tier: Inert = None
    safety_identifier: Inert = None
    prompt_cache_key: Inert = None
    prompt_cache_options: Inert = None
    prompt_cache_retention: Inert = None
    client_metadata: Inert = None


class SocketBody(ResponsesBody, kw_only=True):
    """A message of a WebSocket, which is always answered by a stream."""

    type: str = ""
    generate: bool | None = None  # false: the prompt is only computed ahead
