"""The bodies of requests. A field is honoured, known to change nothing, or refused by name."""

from typing import Any

from msgspec import Struct

from tahr.server.bodies.decoding import Inert, Limited
from tahr.server.bodies.inputs import EmbeddingInput, EmbeddingMessage, Prompts
from tahr.server.bodies.messages import Message
from tahr.server.bodies.sampling_fields import LlamaSamplingFields, Lora


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: Inert = None


class GenerationBody(LlamaSamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Fields that chats and completions share; null is the same as not given."""

    model: str | None = None
    lora: Lora = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    buffer: bool | None = None  # nothing is sent before a reply with a grammar is whole

    top_a: float | None = None
    eta_cutoff: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    banned_tokens: list[int] | None = None
    allowed_tokens: list[int] | None = None
    n: int | None = None
    max_tokens: int | None = None
    n_predict: int | None = None  # llama.cpp's name of the same
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    speculative: bool | None = None

    response_format: Any = None  # `grammars` reads this field and the five below
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


class ChatBody(GenerationBody, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    prediction: Inert = None
    tools: list[Any] | None = None  # `chat_fields` reads this field and those below
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

    input: EmbeddingInput | None = None  # one of it and `messages`
    messages: list[EmbeddingMessage] | None = None
    modality: str | None = None
    model: str | None = None
    lora: Lora = None
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
