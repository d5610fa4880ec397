"""Every way to say no: one exception, one envelope, one table from errors to status codes."""

from collections.abc import Mapping

import msgspec

from tahr.config import sampling_names
from tahr.errors import ConfigError, KvCacheFull, TahrError, TemplateError, TokenizerError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "internal_server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}

# What is wrong with the request itself; any other error is the server's own.
FAULTS_OF_THE_REQUEST = (ConfigError, TemplateError, TokenizerError, KvCacheFull)

SAMPLING_NAMES = frozenset(sampling_names())


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Envelope(msgspec.Struct):
    """The body of every reply that is not a success."""

    error: ErrorBody


class Refusal(Exception):
    """A request that ends with an error: the status, a sentence, and the field that is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        """The envelope as JSON."""
        return msgspec.json.encode(Envelope(ErrorBody(self.message, TYPES[self.status], self.param, self.code)))


def bad_field(param: str, message: str, code: str | None = None) -> Refusal:
    """A 400 that names the field."""
    return Refusal(400, message, param=param, code=code)


def refusal_of(error: BaseException, spelled: Mapping[str, str] | None = None) -> Refusal:
    """An error as what the client is told; `spelled` maps our names to those the client used."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, FAULTS_OF_THE_REQUEST):
        return named(str(error), spelled or {})
    cause = error.__cause__ or error
    if isinstance(error, TahrError) and isinstance(cause, TahrError):
        return Refusal(500, str(error))
    # What others raise may quote anything.
    return Refusal(500, f"Tahr failed unexpectedly ({type(cause).__name__}): the server's log says where.")


def named(message: str, spelled: Mapping[str, str]) -> Refusal:
    """A 400 whose `param` is the option the sentence begins with, in the client's own spelling."""
    name, _, rest = message.partition(" ")
    if name not in SAMPLING_NAMES:
        return Refusal(400, message)
    param = spelled.get(name, name)
    return Refusal(400, f"{param} {rest}", param=param)
