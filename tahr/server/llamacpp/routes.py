"""The routes that only llama.cpp's server has."""

from functools import partial

from tahr.server.llamacpp import bodies, completion, replies, views
from tahr.server.route import Route

NativeRoute = partial(Route, errors=replies.NativeError)

ROUTES = [
    NativeRoute(
        *("POST", "/completion", completion.complete, bodies.NativeCompletionBody, replies.NativeReply),
        aliases=("/completions",),
    ),
    NativeRoute("POST", "/infill", completion.infill, bodies.InfillBody, replies.NativeReply),
    NativeRoute("GET", "/props", views.props, gives=replies.PropsReply),
    NativeRoute("GET", "/slots", views.slots),
]
