"""The fields of Ollama's requests."""

import math
import re
from collections.abc import Sequence
from typing import Any

from tahr.server.bodies.image_parts import ContentPart, placed_image
from tahr.server.bodies.messages import Message, MessageFunction, MessageToolCall
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.guard import check_admin
from tahr.server.http.request import HttpRequest
from tahr.server.models.registry import ModelRegistry, ServedModel
from tahr.server.ollama.bodies import KeepAlive, OllamaBody, OllamaMessage, OllamaOptions
from tahr.server.replies.grammars import FieldGrammar, made
from tahr.server.replies.params import within
from tahr.server.state.state import ServerState

# Options that are sampling settings under the same name.
SAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "presence_penalty"),
    *("frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta", "seed", "stop", "speculative"),
)
SENT_NAMES = {
    "max_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "reasoning_effort": "think",
}
ONLY = {"tfs_z": 1, "penalize_newline": True, "logits_all": False, "vocab_only": False}
EFFORTS = ("low", "medium", "high")

LATEST = ":latest"
DURATION = re.compile(r"(\d{1,18}(?:\.\d{0,9})?)(ns|us|µs|ms|s|m|h)")
UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_DURATION_CHARS = 64
FOR_EVER_S = 1e9


# ---- models -------------------------------------------------------------------------------------------------


def served_name(models: ModelRegistry, name: str) -> str:
    """A name as the server knows it: Ollama's clients may end it with `:latest`."""
    if not name:
        raise bad_field("model", "model is missing: name one of those that /api/tags lists.")
    known = models.get(name) or not name.endswith(LATEST)
    return name if known else name.removesuffix(LATEST)


def find_model(models: ModelRegistry, name: str) -> ServedModel:
    return models.find_adapted(served_name(models, name))[0]


def keep_alive_s(value: KeepAlive) -> float:
    """Seconds; infinity: for ever."""
    if isinstance(value, bool) or value is None:
        raise bad_keep_alive(value)
    if isinstance(value, int | float):
        seconds = float(min(max(value, -1), 10 * FOR_EVER_S))
    else:
        seconds = duration_s(value.strip())
    return math.inf if seconds < 0 or seconds > FOR_EVER_S else seconds


def duration_s(text: str) -> float:
    """`5m`, `1h30m`, `-1`, `300`."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text)
    if len(text) > MAX_DURATION_CHARS:
        raise bad_keep_alive(text)
    if re.fullmatch(r"\d{1,18}(\.\d{0,9})?", rest):
        return sign * float(rest)
    if not rest or DURATION.sub("", rest):
        raise bad_keep_alive(text)
    return sign * sum(float(number) * UNITS_S[unit] for number, unit in DURATION.findall(rest))


def bad_keep_alive(value: Any) -> HttpError:
    return bad_field("keep_alive", f"keep_alive is {str(value)[:64]!r}, but it must be seconds or such as 5m, 0 or -1.")


def check_keep_alive(request: HttpRequest, state: ServerState, seconds: float) -> None:
    """Unloading a model sooner than the server does harms others, so it takes what admin routes take."""
    if seconds < (math.inf if state.pool.keep_alive_s is None else state.pool.keep_alive_s):
        check_admin(request, state.settings.admin_key, state.keys)


# ---- generation ---------------------------------------------------------------------------------------------


def sampling_of(body: OllamaBody, context_size: int) -> dict[str, Any]:
    """The sampling settings by our names."""
    options = body.options or OllamaOptions()
    check_options(options, context_size)
    for name in ("truncate", "shift"):
        if getattr(body, name):
            raise bad_field(name, f"{name} is not supported: what does not fit the context is refused. Send false.")
    given: dict[str, Any] = {name: getattr(options, name) for name in SAME}
    n_tokens = options.num_predict
    given["repetition_penalty"] = options.repeat_penalty
    given["max_tokens"] = -1 if n_tokens is None or n_tokens <= 0 else n_tokens
    given["logprobs"] = n_logprobs(body)
    return given


def n_logprobs(body: OllamaBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_field("top_logprobs", "top_logprobs needs logprobs to be true: set it, or leave both out.")
    return within("top_logprobs", body.top_logprobs or 0) if body.logprobs else None


def check_options(options: OllamaOptions, context_size: int) -> None:
    for name, only in ONLY.items():
        if getattr(options, name) not in (None, only):
            raise bad_field(f"options.{name}", f"options.{name} can only be {str(only).lower()} here: leave it out.")
    if options.num_ctx is not None and options.num_ctx > context_size:
        message = f"options.num_ctx is {options.num_ctx}, but the model was loaded with a context of {context_size}"
        raise bad_field("options.num_ctx", f"{message} tokens: start the server with a larger one (--ctx).")


def grammar_of(body: OllamaBody) -> FieldGrammar | None:
    """`format` as a grammar."""
    value = body.format
    if value in (None, ""):
        return None
    if value == "json":
        return made("format", "json_object")
    if not isinstance(value, dict):
        raise bad_field("format", "format must be json or a JSON schema.")
    return made("format", "json_schema", value)


def thinking_of(body: OllamaBody) -> tuple[bool | None, str | None]:
    """Whether to think, and how much."""
    if body.think is None or isinstance(body.think, bool):
        return body.think, None
    if body.think not in EFFORTS:
        raise bad_field("think", f"think must be true, false, or one of {', '.join(EFFORTS)}.")
    return None, body.think


def messages_of(messages: Sequence[OllamaMessage]) -> list[Message]:
    return [message_of(message, f"messages[{i}]") for i, message in enumerate(messages)]


def content_of(
    text: str | None,
    role: str,
    images: Sequence[str] | None,
    where: str,
) -> str | list[ContentPart] | None:
    """A text, with its images before it."""
    if not images:
        return text if text is not None or role == "assistant" else ""
    parts = [placed_image(data, f"{where}[{i}]") for i, data in enumerate(images)]
    return [*parts, ContentPart("text", text or "")]


def message_of(message: OllamaMessage, where: str) -> Message:
    calls = [
        MessageToolCall(function=MessageFunction(call.function.name, call.function.arguments), id=call.id)
        for call in message.tool_calls or ()
    ]
    return Message(
        role=message.role,
        content=content_of(message.content, message.role, message.images, f"{where}.images"),
        name=message.tool_name or message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=calls or None,
        reasoning_content=message.thinking,
    )
