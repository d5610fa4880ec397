"""/completion and /infill, as llama.cpp's server has them."""

from functools import partial

import msgspec

from tahr.server.bodies.decoding import decode
from tahr.server.http.request import HttpRequest
from tahr.server.llamacpp.bodies import InfillBody, NativeBody, NativeCompletionBody
from tahr.server.llamacpp.fields import SENT_NAMES, check_native, completion_fields, prompts_of, settings_shown
from tahr.server.llamacpp.fill_in import OtherFile, fill_in_prompt
from tahr.server.llamacpp.formatter import NativeFormatter, NativeOptions
from tahr.server.models.engine_port import ServedEngine
from tahr.server.models.registry import ServedModel
from tahr.server.openai.bodies import CompletionBody
from tahr.server.openai.completions import TextRequest, continue_texts
from tahr.server.state.state import ServerState

COMPLETION = msgspec.json.Decoder(NativeCompletionBody)
INFILL = msgspec.json.Decoder(InfillBody)


async def complete(request: HttpRequest, state: ServerState) -> None:
    """Continue a text, tokens, or several of them, as llama.cpp's server does."""
    await continue_texts(request, state, partial(read_completion, state))


async def infill(request: HttpRequest, state: ServerState) -> None:
    """What stands between two texts; only of models with tokens for that."""
    await continue_texts(request, state, partial(read_infill, state))


def read_completion(state: ServerState, data: bytes) -> TextRequest:
    body = decode(COMPLETION, data)
    model = state.models.find_adapted(body.model)[0]
    return text_request(body, model, prompts_of(model.engine, body.prompt))


def read_infill(state: ServerState, data: bytes) -> TextRequest:
    body = decode(INFILL, data)
    model = state.models.find_adapted(body.model)[0]
    return text_request(body, model, [infill_tokens(model.engine, body)])


def infill_tokens(engine: ServedEngine, body: InfillBody) -> list[int]:
    files = tuple(OtherFile(each.filename, each.text) for each in body.input_extra or ())
    return fill_in_prompt(engine, body.input_prefix + body.prompt, body.input_suffix, files=files)


def text_request(body: NativeBody, model: ServedModel, prompts: list[list[int]]) -> TextRequest:
    check_native(body)
    tokenizer = model.engine.tokenizer
    made = CompletionBody(prompt=list(prompts), **completion_fields(body, tokenizer))
    asked = NativeOptions(
        n_prompt_tokens=[len(tokens) for tokens in prompts],
        prompt_texts=[tokenizer.decode(tokens, skip_special=False) for tokens in prompts],
        settings=settings_shown(body, model.defaults),
        fields=body.response_fields or [],
        return_tokens=bool(body.return_tokens),
    )
    return TextRequest(made, partial(NativeFormatter, asked), cuts_length=True, sent_names=SENT_NAMES)
