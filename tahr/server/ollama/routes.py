"""The routes of Ollama's API."""

from functools import partial

from tahr.server.http.errors import HttpError
from tahr.server.http.request import HttpRequest
from tahr.server.ollama import bodies, embeddings, generation, library, pull, replies
from tahr.server.ollama.formatter import HEADERS
from tahr.server.ollama.replies import OllamaError
from tahr.server.state.route import Route
from tahr.server.state.state import ServerState

OllamaRoute = partial(Route, errors=OllamaError, streams=HEADERS["content-type"])


async def unsupported(request: HttpRequest, state: ServerState) -> None:
    """Refused: models are made and published with other tools."""
    message = f"{request.path} is not supported: make models with `tahr quantize`, `convert` or `merge`."
    raise HttpError(400, message, code="unsupported")


ROUTES = [
    OllamaRoute("POST", "/api/chat", generation.chat, bodies.OllamaChatBody, replies.OllamaChatReply),
    OllamaRoute("POST", "/api/generate", generation.generate, bodies.OllamaGenerateBody, replies.OllamaGenerateReply),
    OllamaRoute("POST", "/api/embed", embeddings.embed, bodies.OllamaEmbedBody, replies.OllamaEmbedReply),
    OllamaRoute(
        "POST",
        "/api/embeddings",
        embeddings.embeddings,
        bodies.OllamaEmbeddingsBody,
        replies.OllamaEmbeddingsReply,
    ),
    OllamaRoute("GET", "/api/tags", library.tags, gives=replies.OllamaModelList),
    OllamaRoute("GET", "/api/ps", library.running, gives=replies.OllamaModelList),
    OllamaRoute("POST", "/api/show", library.show, bodies.ShowBody, replies.ShowReply),
    OllamaRoute("GET", "/api/version", library.version, gives=replies.OllamaVersion),
    OllamaRoute("POST", "/api/copy", library.copy, bodies.CopyBody, is_admin=True),
    OllamaRoute("DELETE", "/api/delete", library.delete, bodies.DeleteBody, is_admin=True),
    OllamaRoute("POST", "/api/pull", pull.pull, bodies.PullBody, replies.PullStatus, is_admin=True),
    OllamaRoute("POST", "/api/create", unsupported, is_admin=True),
    OllamaRoute("POST", "/api/push", unsupported, is_admin=True),
]
