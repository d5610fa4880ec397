"""The bodies of requests. A field is honoured, known to change nothing, or refused by name."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct

from tahr.server.http.errors import HttpError, bad_field
from tahr.server.sampling_fields import LlamaSamplingFields

Body = TypeVar("Body", bound=Struct)
Inert = Any  # a field that cannot change the output: whatever it holds is ignored

Limited = Any  # a field of which only the values in ONLY can be honoured
Refused = Annotated[Any, msgspec.Meta(extra_json_schema={"enum": [None]})]  # known by name, and never honoured


def described(**keywords: Any) -> msgspec.Meta:
    """What /openapi.json says of a field beyond its type; a check elsewhere says it in a sentence."""
    return msgspec.Meta(extra_json_schema=keywords)


class TextItem(Struct, forbid_unknown_fields=True):
    """A text among others, as some clients of embeddings send it."""

    text: str


Prompts = str | list[str | int | list[int]]  # a text, texts, tokens, or lists of tokens
Inputs = str | TextItem | list[str | int | list[int] | TextItem]  # the same, and texts as objects


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: Inert = None


class LoraItem(Struct, forbid_unknown_fields=True):
    """An adapter among others."""

    name: str
    scale: float | None = None


class GenerationBody(LlamaSamplingFields, kw_only=True, forbid_unknown_fields=True):
    """What a chat and a completion have in common; null is the same as not given."""

    model: str | None = None
    lora: str | list[str | LoraItem] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None

    top_a: float | None = None
    eta_cutoff: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    banned_tokens: list[int] | None = None
    allowed_tokens: list[int] | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    speculative: bool | None = None

    response_format: Any = None  # these are read by `grammars`
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    user: Inert = None
    metadata: Inert = None
    store: Inert = None
    service_tier: Inert = None
    safety_identifier: Inert = None
    prompt_cache_key: Inert = None
    prompt_cache_retention: Inert = None
    id_slot: Inert = None  # llama.cpp's: which slot computes changes nothing


class ContentPart(Struct):
    """A part of a message; unknown fields are looked at only to refuse the type."""

    type: str
    text: str | None = None


class MessageFunction(Struct, forbid_unknown_fields=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A call the model made before."""

    function: MessageFunction
    id: str | None = None
    type: str = "function"
    index: Inert = None  # some clients put the deltas of a stream together and leave it there


class Message(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    function_call: MessageFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: Inert = None
    annotations: Inert = None
    provider_specific_fields: Inert = None  # litellm leaves these in messages it made
    thinking_blocks: Inert = None
    audio: Limited = None


class ChatBody(GenerationBody, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    prediction: Inert = None
    tools: list[Any] | None = None  # these are read by `chat_fields`
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None
    thinking: bool | dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = None
    thinking_token_budget: int | None = None  # vLLM's name of the same
    thinking_budget_tokens: int | None = None  # llama.cpp's

    modalities: Limited = None
    audio: Limited = None
    web_search_options: Limited = None
    verbosity: Limited = None


class CompletionBody(GenerationBody, kw_only=True):
    """The body of /v1/completions."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: int | None = None
    suffix: Limited = None
    best_of: Limited = None


class EmbeddingBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/embeddings."""

    input: Inputs
    model: str | None = None
    lora: str | list[str | LoraItem] | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    pooling: str | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    input_type: str | None = None
    truncate_prompt_tokens: int | None = None
    user: Inert = None


class TokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /tokenize: one of a text (`prompt`, or `content` as llama.cpp says) and a conversation."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None  # llama.cpp's name of the same
    parse_special: bool = True
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False
    with_pieces: bool = False
    tools: list[Any] | None = None


class DetokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None
    skip_special: bool = False


class TemplateBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /apply-template."""

    messages: list[Message]
    model: str | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None


# The values of a limited field that ask for nothing we cannot do. Everything else is refused.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "suffix": ("",),
    "best_of": (1,),
}
BODIES = (ChatBody, CompletionBody, TokenizeBody, TemplateBody, Message)
NAMES_OF = {body: tuple(name for name in body.__struct_fields__ if name in ONLY) for body in BODIES}
WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
FIELD = re.compile(r"field `(?P<name>[^`]*)`")


def decode(decoder: "msgspec.json.Decoder[Body]", data: bytes) -> Body:
    """A checked body, or an error that names the field."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"The body is not JSON ({error}): send one JSON object in UTF-8.") from error


def wrong_field(complaint: str) -> HttpError:
    """From `Expected `int`, got `str` - at `$.n`` to a sentence and the field's name."""
    found = WHERE.match(complaint)
    what, path = (found["what"], found["path"] or "") if found else (complaint, "")
    path = path.strip(".")
    field = FIELD.search(what)
    if field is None:
        return bad_field(path or "body", f"{path or 'The body'} has the wrong type: {lower(what)}.")
    name = f"{path}.{field['name']}".strip(".")
    if "missing" in what:
        return bad_field(name, f"The field {name} is missing: it is required.")
    return bad_field(name, f"The field {name} is not one this route knows: leave it out.", code="unknown_field")


def lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def check_limited(body: Struct, inside: str = "") -> None:
    """Refuse a limited field that asks for what cannot be honoured."""
    for name in NAMES_OF[type(body)]:  # type: ignore[index]
        value = getattr(body, name)
        if value is not None and not any(value == ok and type(value) is type(ok) for ok in ONLY[name]):
            field = inside + name
            raise bad_field(field, f"{field} is not supported by this server: leave it out.", "unsupported")


def lora_of(body: GenerationBody | EmbeddingBody) -> Any:
    """The field `lora` as `SamplingParams` takes it."""
    if not isinstance(body.lora, list):
        return body.lora
    return [each if isinstance(each, str) else (each.name, each.scale) for each in body.lora]
