"""/v1/completions: texts and lists of tokens, continued."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from tahr.server.adapters import chosen_model
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.models import ServedModel
from tahr.server.openai.bodies import CompletionBody, check_limited, decode, lora_of
from tahr.server.openai.chat import check_stream, reply_options, room, salt_of
from tahr.server.openai.formatters import Echo, FormatterMaker, TextFormatter
from tahr.server.openai.generation import EngineInput, GenerationRequest, generate
from tahr.server.openai.grammars import grammar_of
from tahr.server.openai.prompts import check_generates, encode_inputs, separate
from tahr.server.openai.sampling import MAX_CHOICES, Asked, check_output_logprobs, check_prompt_logprobs, fit, params_of
from tahr.server.state import ServerState

BODY = msgspec.json.Decoder(CompletionBody)


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A completion of any API: the body that all of them become, and how the reply is written, if not as here."""

    body: CompletionBody
    formatter: FormatterMaker | None = None
    cuts_length: bool = False  # a max_tokens beyond the room is cut to it, not refused
    sent_names: Mapping[str, str] = field(default_factory=dict)  # what the API calls fields of the body


async def complete(request: HttpRequest, state: ServerState) -> None:
    """Continue one text, or several at once."""
    await continue_texts(request, state, lambda data: TextRequest(decode(BODY, data)))


async def continue_texts(request: HttpRequest, state: ServerState, read: Callable[[bytes], TextRequest]) -> None:
    """Continue texts; `read` makes a completion of the bytes of the body, and runs on the text pool."""
    data = await request.body()
    salt = salt_of(request, state)

    def work() -> GenerationRequest:
        asked_text = read(data)
        try:
            return prepare(state, asked_text, salt)
        except HttpError as error:
            raise error.renamed(asked_text.sent_names) from error

    await generate(request, state, await state.text_pool.run_for(request, work, len(data)))


def prepare(state: ServerState, asked_text: TextRequest, salt: str) -> GenerationRequest:
    """Check and tokenise everything; refused as a whole if any prompt cannot run."""
    body = asked_text.body
    model, lora = chosen_model(state.models, body.model, lora_of(body))
    check_generates(model.engine)
    check_limited(body)
    check_stream(body)
    prefill_only = body.max_tokens == 0  # only the log-probabilities of the prompt are wanted
    if prefill_only:
        body.max_tokens = 1
    asked = params_of(body)
    if body.echo and asked.params.logprobs is not None:
        asked = replace(asked, params=replace(asked.params, prompt_logprobs=asked.params.logprobs))
    inputs = inputs_of(state, model, asked_text, asked, salt)
    constraint = grammar_of(body)
    if constraint:
        inputs = [replace(each, params=constraint.over(each.params)) for each in inputs]
    if lora:
        inputs = [replace(each, params=replace(each.params, lora=lora)) for each in inputs]
    n_prompt_tokens = sum(len(each.tokens) for each in inputs)
    options = reply_options(body, model, len(inputs), asked.params, n_prompt_tokens)
    make = asked_text.formatter or partial(TextFormatter, echoes=echoes(model, body, inputs))
    return GenerationRequest(
        model=model,
        inputs=inputs,
        formatter=make(model.engine.tokenizer, options),
        is_reply=False,
        stream=bool(body.stream),
        return_progress=bool(body.return_progress),
        prefill_only=prefill_only,
        grammar_field=constraint.field if constraint else "",
    )


def inputs_of(
    state: ServerState, model: ServedModel, asked_text: TextRequest, asked: Asked, salt: str
) -> list[EngineInput]:
    body, n = asked_text.body, asked.params.n
    prompts = encode_inputs(model.engine, body.prompt, "prompt")
    if len(prompts) * n > MAX_CHOICES:
        message = f"{len(prompts)} prompts and n {n} are more than the {MAX_CHOICES} choices of one request."
        raise bad_field("prompt", message)
    n_tokens, echoed = sum(map(len, prompts)), bool(body.echo and asked.params.logprobs is not None)
    field = "logprobs" if echoed else "prompt_logprobs"
    check_prompt_logprobs(field, n_tokens, asked.params.prompt_logprobs, n if echoed else 1)
    rooms = [room(state, model, tokens, "prompt", asked_text.cuts_length) for tokens in prompts]
    made = [fit(asked, model.defaults, each, salt) for each in rooms]
    check_output_logprobs("logprobs", max(made, key=lambda params: params.max_tokens or 0), len(prompts))
    return [EngineInput(tokens, params) for tokens, params in zip(prompts, made, strict=True)]


def echoes(model: ServedModel, body: CompletionBody, inputs: list[EngineInput]) -> list[Echo]:
    """The prompts as they are repeated: as they were sent, or the text of their tokens."""
    if not body.echo:
        return []
    sent = separate(body.prompt, "prompt")
    decode_tokens = model.engine.tokenizer.decode
    return [
        Echo(each if isinstance(each, str) else decode_tokens(made.tokens), made.tokens, isinstance(each, str))
        for each, made in zip(sent, inputs, strict=True)
    ]
