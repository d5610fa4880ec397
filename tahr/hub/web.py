"""Plain HTTP with the standard library: redirects that keep the login at home, and errors in sentences."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import cache
from typing import IO, Any
from urllib.parse import urlsplit

from tahr.errors import DownloadError, ModelNotFound
from tahr.hub.preview import HEAD_BYTES, architecture_of

TIMEOUT_S = 30.0
MAX_JSON_BYTES = 8 << 20
RETRY_STATUS = (408, 429, 500, 502, 503, 504)


class Transient(Exception):
    """The connection failed in a way that may pass."""


def architecture_at(url: str, headers: Mapping[str, str], what: str) -> str | None:
    """The architecture of a GGUF from its first bytes; None where they cannot be had, or do not say."""
    try:
        with open_url(url, {**headers, "Range": f"bytes=0-{HEAD_BYTES - 1}"}, what) as response:
            return architecture_of(response.read(HEAD_BYTES))
    except (Transient, OSError, http.client.HTTPException):
        return None


def get_json(url: str, headers: Mapping[str, str], what: str) -> Any:
    """A small JSON document, or a sentence about why not."""
    try:
        with open_url(url, headers, what) as response:
            return json.loads(response.read(MAX_JSON_BYTES))
    except (Transient, OSError, http.client.HTTPException) as error:
        raise _unreachable(url, what, error) from error
    except (ValueError, RecursionError) as error:
        raise DownloadError(f"{urlsplit(url).netloc} answered for {what} with something that is no JSON.") from error


def _unreachable(url: str, what: str, error: Exception) -> DownloadError:
    return DownloadError(
        f"{urlsplit(url).netloc} cannot be reached for {what} ({error}): check the network. Models that are"
        " already on this machine work without it (`tahr list`)."
    )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; credentials stay with the host they are for and never leave an encrypted connection."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and not _keeps_credentials(req.full_url, newurl):
            new.remove_header("Authorization")
        return new


def _keeps_credentials(old: str, new: str) -> bool:
    before = urlsplit(old)
    after = urlsplit(new)
    return before.netloc == after.netloc and (before.scheme == after.scheme or after.scheme == "https")


@cache
def _opener() -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    try:  # Python builds that know no certificate store still have the one huggingface_hub brings
        import certifi
    except ImportError:
        pass
    else:
        context.load_verify_locations(certifi.where())
    return urllib.request.build_opener(_Redirects, urllib.request.HTTPSHandler(context=context))


def open_url(url: str, headers: Mapping[str, str], what: str) -> http.client.HTTPResponse:
    """An open answer to a GET; `what` is what an error message calls it."""
    request = urllib.request.Request(url, headers={"User-Agent": "tahr", **headers})
    try:
        response: http.client.HTTPResponse = _opener().open(request, timeout=TIMEOUT_S)
        return response
    except urllib.error.HTTPError as error:
        raise _explain(error, what) from error
    except (OSError, http.client.HTTPException) as error:
        raise Transient(str(getattr(error, "reason", error))) from error
    except ValueError as error:  # an address, or one it was redirected to, that is none
        raise DownloadError(f"The address of {what} cannot be used ({error}).") from error


def _explain(error: urllib.error.HTTPError, what: str) -> Exception:
    if error.code in RETRY_STATUS:
        return Transient(f"HTTP {error.code}")
    if error.code in (401, 403):
        return DownloadError(
            f"The server refuses {what} without a login it accepts (HTTP {error.code}): for a gated Hugging Face"
            " model, accept its terms on its page and set HF_TOKEN."
        )
    if error.code == 404:
        return ModelNotFound(f"The server has no {what}: check the spelling.")
    return DownloadError(f"The server answered HTTP {error.code} ({error.reason}) for {what}.")
