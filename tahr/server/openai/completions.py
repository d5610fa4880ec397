"""/v1/completions: texts and lists of tokens, continued."""

from functools import partial

import msgspec

from tahr.generation.request import GenerationRequest
from tahr.server.bodies.decoding import check_limited, decode
from tahr.server.bodies.sampling_fields import lora_of
from tahr.server.conversations.sessions import Caller
from tahr.server.http.request import HttpRequest
from tahr.server.models.chosen import chosen_model
from tahr.server.models.registry import ServedModel
from tahr.server.openai.bodies import CompletionBody
from tahr.server.openai.chat import check_stream, includes_usage
from tahr.server.openai.formatters import Echo, TextFormatter
from tahr.server.openai.grammars import grammar_of, is_buffered
from tahr.server.openai.sampling import collect
from tahr.server.replies.params import check_choices, params_of
from tahr.server.replies.prompts import check_generates, encode_inputs, separate
from tahr.server.replies.served import ServedRequest, reply_to
from tahr.server.state.state import ServerState

BODY = msgspec.json.Decoder(CompletionBody)


async def complete(request: HttpRequest, state: ServerState) -> None:
    """Continue one text, or several at once."""
    await reply_to(request, state, partial(read, state))


def read(state: ServerState, data: bytes, caller: Caller) -> ServedRequest:
    """Check and tokenise everything; refused as a whole if any prompt cannot run."""
    body = decode(BODY, data)
    model, lora = chosen_model(state.models, body.model, lora_of(body.lora))
    check_generates(model.engine)
    check_limited(body)
    check_stream(body)
    given, names = collect(body)
    if body.max_tokens == 0:  # a request for the log-probabilities of the prompt alone
        given["max_tokens"] = 1
    echoes = bool(body.echo and body.logprobs is not None)
    if echoes:
        given["prompt_logprobs"] = body.logprobs
    constraint = grammar_of(body)
    grammar = constraint.grammar if constraint else None
    field = constraint.field if constraint else ""
    params = params_of({**given, "grammar": grammar, "lora": lora or None}, names)
    prompts = encode_inputs(model.engine, body.prompt, "prompt")
    check_choices(len(prompts), params.n)
    return ServedRequest(
        model=model,
        requests=[GenerationRequest(tokens, params, salt=caller.salt) for tokens in prompts],
        formatter=partial(TextFormatter, echoes=echoed(model, body, prompts)),
        model_name=body.model,
        names=names,
        prompt_field="prompt",
        logprobs_field="logprobs",
        grammar_field=field,
        buffered=is_buffered(body, field),
        stream=bool(body.stream),
        return_progress=bool(body.return_progress),
        include_usage=includes_usage(body),
        prompt_logprobs=body.prompt_logprobs is not None,
        echoes=echoes,
        prefill_only=body.max_tokens == 0,
    )


def echoed(model: ServedModel, body: CompletionBody, prompts: list[list[int]]) -> list[Echo]:
    """The prompts as they are repeated: as they were sent, or the text of their tokens."""
    if not body.echo:
        return []
    sent = separate(body.prompt, "prompt")
    decode_tokens = model.engine.tokenizer.decode
    return [
        Echo(each if isinstance(each, str) else decode_tokens(tokens), tokens, isinstance(each, str))
        for each, tokens in zip(sent, prompts, strict=True)
    ]
