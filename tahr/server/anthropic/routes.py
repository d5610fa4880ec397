"""The routes of Anthropic's API."""

from functools import partial

from tahr.server.anthropic import bodies, messages, replies
from tahr.server.state.route import Route

AnthropicRoute = partial(Route, errors=replies.AnthropicError, id_header="request-id")

ROUTES = [
    AnthropicRoute("POST", "/v1/messages", messages.create_message, bodies.MessagesBody, replies.MessageReply),
    AnthropicRoute(
        "POST",
        "/v1/messages/count_tokens",
        messages.count_tokens,
        bodies.CountTokensBody,
        replies.CountTokensReply,
    ),
]
