"""The routes that only llama.cpp's server has."""

from functools import partial

from tahr.server.llamacpp import bodies, completion, replies, views
from tahr.server.state.route import Route

NativeRoute = partial(Route, errors=replies.NativeError)

ROUTES = [
    # Replies whose form depends on the request: a list for several prompts, a selection of fields.
    NativeRoute(
        "POST",
        "/completion",
        completion.complete,
        bodies.NativeCompletionBody,
        aliases=("/completions",),
    ),
    NativeRoute("POST", "/infill", completion.infill, bodies.InfillBody),
    NativeRoute("GET", "/props", views.props, gives=replies.PropsReply),
    NativeRoute("GET", "/slots", views.slots),
    NativeRoute("GET", "/lora-adapters", views.adapters),
    NativeRoute("POST", "/lora-adapters", views.set_adapters),
]
