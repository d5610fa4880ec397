"""/completion and /infill, as llama.cpp's server has them."""

from functools import partial

import msgspec

from tahr.generation.request import GenerationRequest
from tahr.server.bodies.decoding import decode
from tahr.server.bodies.sampling_fields import lora_of
from tahr.server.conversations.sessions import Caller
from tahr.server.http.errors import bad_field
from tahr.server.http.request import HttpRequest
from tahr.server.llamacpp.bodies import InfillBody, NativeBody, NativeCompletionBody
from tahr.server.llamacpp.fields import (
    SENT_NAMES,
    check_native,
    grammar_of,
    is_prefill_only,
    prompts_of,
    sampling_of,
    settings_shown,
)
from tahr.server.llamacpp.fill_in import OtherFile, fill_in_prompt
from tahr.server.llamacpp.formatter import NativeFormatter, NativeOptions
from tahr.server.models.chosen import chosen_model
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ServedModel
from tahr.server.replies.params import check_choices, params_of
from tahr.server.replies.prompts import check_generates
from tahr.server.replies.served import ServedRequest, reply_to
from tahr.server.state.state import ServerState

COMPLETION = msgspec.json.Decoder(NativeCompletionBody)
INFILL = msgspec.json.Decoder(InfillBody)


async def complete(request: HttpRequest, state: ServerState) -> None:
    """Continue a text, tokens, or several of them, as llama.cpp's server does."""
    await reply_to(request, state, partial(read_completion, state), SENT_NAMES)


async def infill(request: HttpRequest, state: ServerState) -> None:
    """Generate the text between two others; only for models with tokens for that."""
    await reply_to(request, state, partial(read_infill, state), SENT_NAMES)


def read_completion(state: ServerState, data: bytes, caller: Caller) -> ServedRequest:
    body = decode(COMPLETION, data)
    model = state.models.find_adapted(body.model)[0]
    return served(state, body, model, prompts_of(model.engine, body.prompt), caller)


def read_infill(state: ServerState, data: bytes, caller: Caller) -> ServedRequest:
    body = decode(INFILL, data)
    model = state.models.find_adapted(body.model)[0]
    return served(state, body, model, [infill_tokens(model.engine, body)], caller)


def infill_tokens(engine: ServedEngine, body: InfillBody) -> list[int]:
    files = tuple(OtherFile(each.filename, each.text) for each in body.input_extra or ())
    return fill_in_prompt(engine, body.input_prefix + body.prompt, body.input_suffix, files=files)


def served(
    state: ServerState, body: NativeBody, model: ServedModel, prompts: list[list[int]], caller: Caller
) -> ServedRequest:
    check_native(body)
    _, lora = chosen_model(state.models, body.model, lora_of(body.lora))
    check_generates(model.engine)
    check_stream(body)
    tokenizer = model.engine.tokenizer
    constraint = grammar_of(body)
    grammar = constraint.grammar if constraint else None
    params = params_of({**sampling_of(body, tokenizer), "grammar": grammar, "lora": lora or None}, SENT_NAMES)
    check_choices(len(prompts), params.n)
    shown = NativeOptions(
        n_prompt_tokens=[len(tokens) for tokens in prompts],
        prompt_texts=[tokenizer.decode(tokens, skip_special=False) for tokens in prompts],
        settings=settings_shown(body, model.defaults),
        fields=body.response_fields or [],
        return_tokens=bool(body.return_tokens),
    )
    return ServedRequest(
        model=model,
        requests=[GenerationRequest(tokens, params, cuts_length=True, salt=caller.salt) for tokens in prompts],
        formatter=partial(NativeFormatter, shown),
        model_name=body.model,
        names=SENT_NAMES,
        prompt_field="prompt",
        logprobs_field="logprobs",
        grammar_field=constraint.field if constraint else "",
        stream=bool(body.stream),
        return_progress=bool(body.return_progress),
        prefill_only=is_prefill_only(body),
    )


def check_stream(body: NativeBody) -> None:
    if body.return_progress and not body.stream:
        message = "return_progress needs stream to be true: set it, or leave return_progress out."
        raise bad_field("return_progress", message)
