"""The bodies of OpenAI's Responses API. A field is honoured, known to change nothing, or refused by name."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from tahr.server.openai.bodies import Inert


class InputPart(Struct, omit_defaults=True):
    """A part of an item; what is no text is refused by its type."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(Struct, kw_only=True, omit_defaults=True):
    """An item of a conversation. Which fields count follows from its type; one that cannot be read is refused."""

    type: str = "message"
    id: str | None = None
    role: str | None = None  # of a message
    content: str | list[InputPart] | None = None  # of a message, or of reasoning
    summary: list[InputPart] | None = None  # of reasoning
    call_id: str | None = None  # of a call and its output
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class ReasoningConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # its old name


class TextFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class InputTokensBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/responses/input_tokens."""

    input: str | list[InputItem] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    truncation: str | None = None
    conversation: Any = None  # refused
    personality: Any = None


class ResponsesBody(InputTokensBody, kw_only=True):
    """The body of /v1/responses."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    store: bool | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None

    background: bool | None = None  # these are refused where they ask for something
    top_logprobs: int | None = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None

    max_tool_calls: Inert = None  # counts calls of tools that run on the server: there are none
    stream_options: Inert = None
    user: Inert = None
    service_tier: Inert = None
    safety_identifier: Inert = None
    prompt_cache_key: Inert = None
    prompt_cache_options: Inert = None
    prompt_cache_retention: Inert = None
    client_metadata: Inert = None
