"""/api/pull: fetch a model and serve it."""

import asyncio
import re
from functools import partial

import msgspec

from tahr import hub
from tahr.errors import ModelNotFound, TahrError
from tahr.hub.progress import Progress
from tahr.loading.builder import fetch_model
from tahr.server.bodies.decoding import decode
from tahr.server.http.errors import HttpError, bad_field, logged_error
from tahr.server.http.request import HttpRequest
from tahr.server.http.sse import encode
from tahr.server.models.pool import on_daemon_thread
from tahr.server.ollama.bodies import PullBody
from tahr.server.ollama.fields import LATEST
from tahr.server.ollama.formatter import HEADERS
from tahr.server.ollama.library import MAX_NAME_CHARS
from tahr.server.ollama.replies import OllamaError, PullStatus
from tahr.server.state.state import ServerState

BODY = msgspec.json.Decoder(PullBody)
EVERY_S = 0.2  # between two lines
HUB_HOSTS = ("hf.co/", "huggingface.co/")
OLLAMA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?(:[A-Za-z0-9][A-Za-z0-9._-]*)?")
MAX_PULLS = 4


class PullProgress(Progress):
    """Remembers how far the file is that is being fetched, for whoever asks."""

    def status(self) -> PullStatus:
        """The state as a line of the reply."""
        label = self._label
        if not label:
            return PullStatus("pulling manifest")
        return PullStatus(f"pulling {label}", label, self._total_bytes or 0, self._done_bytes)


async def pull(request: HttpRequest, state: ServerState) -> None:
    """Fetch a model from Ollama's registry or the Hugging Face hub; it is then served by that name."""
    body = decode(BODY, await request.body())
    if body.insecure:
        raise bad_field("insecure", "insecure is not supported: registries are spoken to over HTTPS. Leave it out.")
    source = source_of(body.given)
    if state.make_model is None:
        raise HttpError(409, "This server was not started by `tahr serve`, so it fetches no models.")
    if state.n_pulls >= MAX_PULLS:
        raise HttpError(429, f"{MAX_PULLS} models are being fetched: try again later.", headers={"retry-after": "30"})
    progress = PullProgress()
    state.n_pulls += 1
    work = asyncio.create_task(fetched(state, body.given, source, progress))
    work.add_done_callback(lambda _: ended(state, work))
    await (follow(request, work, progress) if body.stream is not False else whole(request, work))


def source_of(name: str) -> str:
    """A model that may be fetched for a client: a known short name, Ollama's registry, or the hub. Never a path."""
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise bad_field("model", f"model must be a name of at most {MAX_NAME_CHARS} letters.")
    if (short := name.lower().removesuffix(LATEST)) in hub.ALIASES:
        return short
    for host in HUB_HOSTS:
        if name.lower().startswith(host):
            return checked(f"hf:{name[len(host) :]}")
    if OLLAMA_NAME.fullmatch(name) and ".." not in name:
        return checked(f"ollama:{name}")
    raise bad_field("model", f"{name!r} is not a model of Ollama's registry (name:tag) or of the hub (hf.co/org/name).")


def checked(reference: str) -> str:
    try:
        hub.parse(reference)
    except TahrError as error:
        raise bad_field("model", str(error)) from error
    return reference


async def fetched(state: ServerState, name: str, source: str, progress: Progress) -> None:
    await on_daemon_thread(partial(fetch_model, source, progress))[0]
    name = name.removesuffix(LATEST)
    if state.make_model and state.models.get(name) is None:
        state.models.add(await asyncio.to_thread(state.make_model, name, source))


async def follow(request: HttpRequest, work: "asyncio.Task[None]", progress: PullProgress) -> None:
    """A line whenever something has changed; a client that leaves does not end the download."""
    with request.cancellable():
        await request.begin_stream(HEADERS)
        last = b""
        while not work.done():
            line = encode(progress.status()) + b"\n"
            if line != last:
                await request.send(line)
            last = line
            await asyncio.wait({work}, timeout=EVERY_S)
        error = work.exception()
        end = OllamaError.of(logged_error(pull_error(error)), "") if error else PullStatus("success")
        await request.end_stream(encode(end) + b"\n")


async def whole(request: HttpRequest, work: "asyncio.Task[None]") -> None:
    with request.cancellable():
        await asyncio.wait({work})
    if error := work.exception():
        raise pull_error(error) from error
    await request.respond_json(PullStatus("success"))


def pull_error(error: BaseException) -> BaseException:
    """Turn an error of the source into one for the client; any other failure is the server's."""
    if isinstance(error, ModelNotFound):
        return HttpError(404, str(error), param="model", code="model_not_found")
    return HttpError(502, str(error), code="pull_failed") if isinstance(error, TahrError) else error


def ended(state: ServerState, work: "asyncio.Task[None]") -> None:
    state.n_pulls -= 1
    if not work.cancelled():
        work.exception()  # whoever follows reports it
