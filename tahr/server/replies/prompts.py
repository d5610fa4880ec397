"""A client's messages become tokens. All of this may take long, so it runs on the text pool."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tahr.errors import TemplateError, TokenizerError
from tahr.server.bodies.inputs import Inputs, Prompts, TextItem
from tahr.server.bodies.messages import Message
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.models.engine_port import ServedEngine
from tahr.text.replies.thinking import SWITCHES
from tahr.text.templates.chat import ChatTemplate
from tahr.text.tool_calls.tools import is_deeper

OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})
MAX_PROMPTS = 2048  # prompts in one request
MAX_DEPTH = 16  # depth of values for a template
MANY_TOKENS = 2**16
MOST_COUNTED = 2**22  # tokens of a text that is longer than the context


def check_generates(engine: ServedEngine) -> None:
    """Refuse encoders, by the route that is for them."""
    if engine.inputs.encoding:
        use = "/v1/rerank" if engine.inputs.scores_pairs else "/v1/embeddings"
        raise bad_field("model", f"The model {engine.name} is an encoder and generates no text: use {use}.")


def template_of(engine: ServedEngine) -> ChatTemplate:
    check_generates(engine)
    if engine.template is None:
        raise TemplateError(f"The model {engine.name} has no chat template, so it cannot chat: use /v1/completions.")
    return engine.template


def check_variables(template: ChatTemplate, variables: Mapping[str, Any]) -> None:
    # Clients switch thinking off for every model they talk to: one that does not think has nothing to switch.
    known = template.variables | set(SWITCHES)
    foreign = sorted(name for name in variables if name in OURS or name not in known)
    if foreign:
        param = f"chat_template_kwargs.{foreign[0]}"
        raise bad_field(param, f"{param} is not a variable of this model's chat template: leave it out.")
    if is_deeper(variables, MAX_DEPTH):
        raise bad_field("chat_template_kwargs", f"chat_template_kwargs is nested more than {MAX_DEPTH} levels deep.")
    for name in SWITCHES:
        if not isinstance(variables.get(name, True), bool):
            param = f"chat_template_kwargs.{name}"
            raise bad_field(param, f"{param} must be true or false.")


# ---- sizes, before anything is tokenised --------------------------------------------------------------------


def check_text_size(engine: ServedEngine, text: str, field: str) -> None:
    """Refuse a text that cannot fit even if all its tokens are as long as the vocabulary's longest.

    Where a token may stand for any number of characters, the beginning of the text is encoded to find out.
    """
    tokenizer = engine.tokenizer
    most = engine.context_size
    has_bound = tokenizer.max_token_bytes is not None
    if tokenizer.cannot_fit(text, most) or (not has_bound and len(tokenizer.beginning(text, most)) < len(text)):
        raise cannot_fit(engine, len(text), field)


def check_chat_size(engine: ServedEngine, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> None:
    """Refuse a conversation whose messages and tools are too long together."""
    longest = engine.tokenizer.max_token_bytes
    if longest is None:
        return
    sizes = {"messages": sum(map(n_chars_of, messages)), "tools": len(msgspec.json.encode(tools)) // 4 if tools else 0}
    for field, n_chars in sizes.items():  # bytes of tools may be escapes of characters, and templates leave parts out
        if n_chars > engine.context_size * longest:
            raise cannot_fit(engine, n_chars, field)


def n_chars_of(message: Message) -> int:
    calls = sum(len(call.function.arguments or "") for call in message.tool_calls) if message.tool_calls else 0
    if isinstance(message.content, list):
        return calls + sum(len(part.text or "") for part in message.content)
    return calls + len(message.content or "")


def cannot_fit(engine: ServedEngine, n_chars: int, field: str) -> HttpError:
    limit = f"This model's maximum context length is {engine.context_size} tokens"
    message = f"{limit}, into which no text of {n_chars} characters fits: shorten it."
    return bad_field(field, message, "context_length_exceeded")


# ---- tokens -------------------------------------------------------------------------------------------------


def encode_inputs(engine: ServedEngine, inputs: Inputs | Prompts, field: str) -> list[list[int]]:
    """The tokens of a text, several texts, a list of tokens, or several such lists."""
    return [encode_one(engine, text, field) for text in texts_of(inputs, field)]


def texts_of(inputs: Inputs | Prompts, field: str) -> list[str | list[int]]:
    """One entry per text, none of them empty."""
    texts = separate(inputs, field)
    if not texts or not all(texts):
        raise bad_field(field, f"{field} is empty or holds an empty text: give at least one token.")
    if len(texts) > MAX_PROMPTS:
        raise bad_field(field, f"{field} has {len(texts)} entries, but this server takes {MAX_PROMPTS} at most.")
    return texts


def separate(inputs: Inputs | Prompts, field: str) -> list[str | list[int]]:
    """One entry per text."""
    entries = inputs if isinstance(inputs, list) else [inputs]
    if set(map(type, entries)) == {int}:  # one prompt of tokens: it may be long
        return [entries]  # type: ignore[list-item]
    tokens = [each for each in entries if isinstance(each, int)]
    if tokens and len(tokens) == len(entries):
        return [tokens]
    if tokens:
        raise bad_field(field, f"{field} mixes token ids with texts: send a list of one kind.")
    texts = [each.text if isinstance(each, TextItem) else each for each in entries]
    return [each for each in texts if not isinstance(each, int)]


def encode_text(
    engine: ServedEngine, text: str, field: str, add_special: bool = True, parse_special: bool = True
) -> list[int]:
    """The tokens of a text; refused are those that are more than anybody needs to count."""
    most = max(engine.context_size, MOST_COUNTED)
    tokens = engine.tokenizer.encode(text, add_special=add_special, parse_special=parse_special, most=most)
    if len(tokens) > most:
        message = f"{field} has more than {most} tokens, and no longer text is tokenised here: send it in parts."
        raise bad_field(field, message, "context_length_exceeded")
    return tokens


def encode_one(engine: ServedEngine, text: str | list[int], field: str) -> list[int]:
    if isinstance(text, str):
        check_text_size(engine, text, field)
        return encode_text(engine, text, field)
    check_tokens(engine, text, field)
    return text


def check_tokens(engine: ServedEngine, tokens: Sequence[int], field: str) -> None:
    n_vocab = engine.tokenizer.n_vocab
    if tokens and not 0 <= min(tokens) <= max(tokens) < n_vocab:
        raise bad_field(field, f"{field} holds token ids that do not exist: they run from 0 to {n_vocab - 1}.")


def decode_tokens(engine: ServedEngine, tokens: Sequence[int], skip_special: bool) -> str:
    """The text of tokens that a client sent."""
    most = max(engine.context_size, MANY_TOKENS)
    if len(tokens) > most:
        raise bad_field("tokens", f"tokens has {len(tokens)} entries, but this server takes {most} at most.")
    check_tokens(engine, tokens, "tokens")
    try:
        return engine.tokenizer.decode(tokens, skip_special=skip_special)
    except TokenizerError as error:
        raise bad_field("tokens", str(error)) from error
