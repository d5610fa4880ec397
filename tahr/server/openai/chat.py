"""/v1/chat/completions, and what a template makes of a conversation."""

from functools import partial

import msgspec

from tahr.server.http.errors import bad_field
from tahr.server.http.guard import presented_key
from tahr.server.http.request import Call
from tahr.server.openai.bodies import ChatBody, Generation, Message, TemplateBody, check_limited, decode
from tahr.server.openai.formatters import ChatDialect, Style
from tahr.server.openai.generation import Ask, Prompt, generate
from tahr.server.openai.prompts import conversation_of
from tahr.server.openai.replies import TemplateReply
from tahr.server.openai.sampling import Room, fit, params_of
from tahr.server.sessions import Caller, Turn, session_of
from tahr.server.state import Front, Served

BODY = msgspec.json.Decoder(ChatBody)
TEMPLATE_BODY = msgspec.json.Decoder(TemplateBody)


async def chat(call: Call) -> None:
    """Answer a conversation."""
    data = await call.body()
    caller = Caller(presented_key(call), call.header("x-tahr-session"))
    await generate(call, await call.front.beside(partial(prepare, call.front, data, caller), len(data)))


def prepare(front: Front, data: bytes, caller: Caller) -> Ask:
    """Everything that can be wrong with a request is found here, before it costs the engine anything."""
    body = decode(BODY, data)
    served = front.find(body.model)
    check_limited(body)
    check_stream(body)
    asked = params_of(body)
    messages, turn = recalled(front, body, caller, served)
    generate = body.add_generation_prompt is not False
    tokens = conversation_of(served.engine, messages, generate, body.chat_template_kwargs).encode()
    params = fit(asked, served.defaults, room(front, served, tokens, "messages"))
    style = style_of(body, served, 1, params.n, params.logprobs is not None)
    return Ask(
        served=served,
        prompts=[Prompt(tokens, params)],
        dialect=ChatDialect(served.engine.tokenizer, style),
        is_reply=True,
        stream=bool(body.stream),
        include_usage=style.include_usage,
        return_progress=bool(body.return_progress),
        turn=turn,
    )


def recalled(front: Front, body: ChatBody, caller: Caller, served: Served) -> tuple[list[Message], Turn | None]:
    """The messages of the request, after those its session holds, if it names one."""
    session = session_of(caller, body.metadata) if front.sessions else ""
    if not front.sessions or not session:
        return body.messages, None
    if (body.n or 1) > 1:
        raise bad_field("n", "n is more than 1, but a session can go on from one answer only: leave n out.")
    return front.sessions.begin((caller.key, session), body.messages, served.engine)


def room(front: Front, served: Served, tokens: list[int], field: str) -> Room:
    return Room(len(tokens), served.engine.context_size, front.settings.max_tokens_cap, field)


def style_of(body: Generation, served: Served, n_prompts: int, n_answers: int, logprobs: bool) -> Style:
    return Style(
        model=served.name,
        n_choices=n_prompts * n_answers,
        n_answers=n_answers,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs is not None,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def check_stream(body: Generation) -> None:
    """Fields that mean something only with a stream, or only without."""
    if not body.stream:
        for name in ("stream_options", "return_progress"):
            if getattr(body, name):
                raise bad_field(name, f"{name} needs stream to be true: set it, or leave {name} out.")
    elif body.prompt_logprobs is not None:
        raise bad_field("prompt_logprobs", "prompt_logprobs cannot be streamed: leave it out, or set stream to false.")


async def apply_template(call: Call) -> None:
    """The prompt a conversation becomes."""
    body = decode(TEMPLATE_BODY, await call.body())
    engine = call.front.find(body.model).engine
    asked = engine, body.messages, body.add_generation_prompt, body.chat_template_kwargs
    await call.json(TemplateReply(await call.front.beside(lambda: conversation_of(*asked).render())))
