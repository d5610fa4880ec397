"""Errors that are the server's own: told to the client in a sentence, to the log with the place they came from."""

import logging
import traceback

from tahr.server.http.errors import Refusal, refusal_of

log = logging.getLogger("tahr.server")


def told(error: BaseException) -> Refusal:
    """What the client hears; the log gets the stack, but not the message, which may quote a prompt."""
    refusal = refusal_of(error)
    if refusal.status == 500:
        cause = error.__cause__ or error
        stack = "".join(traceback.format_tb(cause.__traceback__))
        log.error("%s failed a request\n%s", type(cause).__name__, stack.rstrip())
    return refusal
