"""How requests fail: one exception, one table from errors to status codes, and the envelope of OpenAI's API."""

import logging
import random
import re
import traceback
from collections.abc import Mapping
from typing import Protocol

import msgspec

from tahr.config import sampling_names
from tahr.errors import (
    ConfigError,
    ExecutorLost,
    GrammarBusy,
    ImagesBusy,
    KvCacheFull,
    TahrError,
    TemplateError,
    TokenizerError,
)

log = logging.getLogger("tahr.server")

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "internal_server_error",
    502: "upstream_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}

# Errors that say what is wrong with the request itself; any other error is the server's own.
REQUEST_ERRORS = (ConfigError, TemplateError, TokenizerError, KvCacheFull)

SAMPLING_NAMES = frozenset(sampling_names())
PLACES = ("messages[", "input[")  # beginnings of places in a conversation
# sentences quote what a client sent, which may be millions of letters
MAX_MESSAGE_CHARS = 1000
MAX_PARAM_CHARS = 256


def request_id() -> str:
    """Make an id that clients quote in reports. It is no secret: asking the system for random bytes takes long."""
    return f"req-{random.getrandbits(96):024x}"


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class HttpError(Exception):
    """A request that ends with an error: the status, a sentence, and the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        message = shortened(message, MAX_MESSAGE_CHARS)
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = shortened(param, MAX_PARAM_CHARS) if param else param
        self.headers = dict(headers or {})

    def renamed(self, sent_names: Mapping[str, str]) -> "HttpError":
        """A copy about a field that the client knows by another name."""
        name, dot, rest = (self.param or "").partition(".")
        if name not in sent_names:
            return self
        message = re.sub(rf"\b{name}\b", lambda _: sent_names[name], self.message, count=1)
        param = sent_names[name] + dot + rest
        return HttpError(self.status, message, param=param, code=self.code, headers=self.headers)


def shortened(text: str, n_chars: int) -> str:
    """A text without its middle if it is long: what is wrong stands at its beginning, what to do at its end."""
    half = n_chars // 2 - 2
    return text if len(text) <= n_chars else f"{text[:half]}...{text[-half:]}"


class ErrorReply(Protocol):
    """The body of a response that is not a success, in the shape of one API."""

    @classmethod
    def of(cls, error: HttpError, request_id: str) -> msgspec.Struct: ...


class Envelope(msgspec.Struct):
    """OpenAI's shape, which every route has that names no other."""

    error: ErrorBody

    @classmethod
    def of(cls, error: HttpError, request_id: str) -> "Envelope":
        return cls(ErrorBody(error.message, TYPES[error.status], error.param, error.code))


def bad_field(param: str, message: str, code: str | None = None) -> HttpError:
    """A 400 that names the field."""
    return HttpError(400, message, param=param, code=code)


def http_error(error: BaseException, sent_names: Mapping[str, str] | None = None) -> HttpError:
    """Any error as the client is to see it; `sent_names` maps our names of fields to those the client used."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, REQUEST_ERRORS):
        return sampling_error(str(error), sent_names or {})
    if isinstance(error, GrammarBusy | ImagesBusy):
        return HttpError(503, str(error), headers={"retry-after": "1"})
    if isinstance(error, ExecutorLost):
        return HttpError(503, str(error), code="model_lost")
    cause = error.__cause__ or error
    if isinstance(error, TahrError) and isinstance(cause, TahrError):
        return HttpError(500, str(error))
    # Messages of other libraries may quote anything.
    return HttpError(500, f"Tahr failed unexpectedly ({type(cause).__name__}): the server's log says where.")


def logged_error(error: BaseException) -> HttpError:
    """Turn an error into HTTP and log it; a fault's stack without its message, which may quote a prompt."""
    made = http_error(error)
    if made.status == 500:
        cause = error.__cause__ or error
        stack = "".join(traceback.format_tb(cause.__traceback__))
        log.error("%s failed a request\n%s", type(cause).__name__, stack.rstrip())
    return made


def sampling_error(message: str, sent_names: Mapping[str, str]) -> HttpError:
    """A 400 whose `param` is what the sentence begins with: an option in the client's own spelling, or a place in what
    the client sent.
    """
    name, _, rest = message.partition(" ")
    if name.startswith(PLACES):
        return HttpError(400, message, param=name)
    if name not in SAMPLING_NAMES:
        return HttpError(400, message)
    param = sent_names.get(name, name)
    return HttpError(400, f"{param} {rest}", param=param)
