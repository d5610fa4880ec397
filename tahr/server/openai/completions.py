"""/v1/completions: texts and lists of tokens, continued."""

from dataclasses import replace
from functools import partial

import msgspec

from tahr.config import SamplingParams
from tahr.server.http.errors import bad_field
from tahr.server.http.request import Call
from tahr.server.openai.bodies import CompletionBody, check_limited, decode
from tahr.server.openai.chat import check_stream, room, style_of
from tahr.server.openai.formatters import Echo, TextDialect
from tahr.server.openai.generation import Ask, Prompt, generate
from tahr.server.openai.prompts import encode_inputs
from tahr.server.openai.sampling import MAX_ANSWERS, fit, params_of
from tahr.server.state import Front, Served

BODY = msgspec.json.Decoder(CompletionBody)


async def complete(call: Call) -> None:
    """Continue one text, or several at once."""
    data = await call.body()
    await generate(call, await call.front.beside(partial(prepare, call.front, data), len(data)))


def prepare(front: Front, data: bytes) -> Ask:
    """Check and tokenise everything; refused as a whole if any prompt cannot run."""
    body = decode(BODY, data)
    served = front.find(body.model)
    check_limited(body)
    check_stream(body)
    mute = body.max_tokens == 0  # only the prompt is to be read, for its log-probabilities
    if mute:
        body.max_tokens = 1
    asked = params_of(body)
    if body.echo and asked.logprobs is not None:
        asked = replace(asked, prompt_logprobs=asked.logprobs)
    prompts = prompts_of(front, served, body, asked)
    style = style_of(body, served, len(prompts), asked.n, asked.logprobs is not None)
    return Ask(
        served=served,
        prompts=prompts,
        dialect=TextDialect(served.engine.tokenizer, style, echoes(served, body, prompts)),
        is_reply=False,
        stream=bool(body.stream),
        include_usage=style.include_usage,
        return_progress=bool(body.return_progress),
        mute=mute,
    )


def prompts_of(front: Front, served: Served, body: CompletionBody, asked: SamplingParams) -> list[Prompt]:
    all_tokens = encode_inputs(served.engine, body.prompt, "prompt")
    if len(all_tokens) * asked.n > MAX_ANSWERS:
        n = len(all_tokens)
        raise bad_field(
            "prompt", f"{n} prompts and n {asked.n} are more than the {MAX_ANSWERS} answers of one request."
        )
    return [Prompt(tokens, fit(asked, served.defaults, room(front, served, tokens, "prompt"))) for tokens in all_tokens]


def echoes(served: Served, body: CompletionBody, prompts: list[Prompt]) -> list[Echo]:
    """The prompts as they are repeated: as they were sent, or as their tokens read."""
    if not body.echo:
        return []
    sent = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    texts = [each for each in sent if isinstance(each, str)]
    if not texts:
        texts = [served.engine.tokenizer.decode(prompt.tokens) for prompt in prompts]
    return [Echo(text, prompt.tokens) for text, prompt in zip(texts, prompts, strict=True)]
