"""The routes of OpenAI's Responses API."""

from tahr.server.responses import bodies, replies, responses, sockets
from tahr.server.state.route import Route

ROUTES = [
    Route(
        "POST",
        "/v1/responses",
        responses.create_response,
        bodies.ResponsesBody,
        replies.ResponseReply,
        aliases=("/responses",),
    ),
    Route(
        "POST",
        "/v1/responses/input_tokens",
        responses.count_input_tokens,
        bodies.InputTokensBody,
        replies.InputTokensReply,
    ),
    Route(
        "GET",
        "/v1/responses",
        responses.list_responses,
        gives=replies.ItemList,
        aliases=("/responses",),
        socket=sockets.open_socket,
    ),
    Route("GET", "/v1/responses/", responses.get_response, gives=replies.ResponseReply),
    Route("DELETE", "/v1/responses/", responses.delete_response, gives=replies.DeletedResponse),
    Route("POST", "/v1/responses/{id}/cancel", responses.cancel_response, gives=replies.ResponseReply),
    Route("GET", "/v1/responses/{id}/input_items", responses.list_input_items, gives=replies.ItemList),
]
