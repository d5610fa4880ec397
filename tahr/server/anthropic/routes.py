"""The routes of Anthropic's API."""

from tahr.server.anthropic import bodies, messages, replies
from tahr.server.route import Route

ROUTES = [
    Route(
        *("POST", "/v1/messages", messages.create_message, bodies.MessagesBody, replies.MessageReply),
        errors=replies.AnthropicError,
    ),
    Route(
        *("POST", "/v1/messages/count_tokens", messages.count_tokens, bodies.CountTokensBody, replies.CountTokensReply),
        errors=replies.AnthropicError,
    ),
]
