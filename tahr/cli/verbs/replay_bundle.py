"""`tahr replay-bundle`: is a dumped request whole, and does it still give the same reply?"""

import argparse
import json
from pathlib import Path
from typing import Any

from tahr.errors import ConfigError, CorruptFile, GenerateError, ServerError, printable

HELP = "check a request that `serve --request-dump-dir` has dumped, or send it again"

EXAMPLES = """\
examples:
  tahr replay-bundle dumps/chatcmpl-1f00                              nine files, all as they were written?
  tahr replay-bundle dumps/chatcmpl-1f00 --url http://127.0.0.1:8080  send it again and compare the replies

Only a bundle of `serve --request-dump-texts` can be sent again: others do not say what was asked."""

TIMEOUT_S = 600
MAX_REPLY_BYTES = 256 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which bundle, and where to send it."""
    parser.epilog = EXAMPLES
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of one request")
    parser.add_argument("--url", metavar="URL", help="a running server to send the request to (key: TAHR_API_KEY)")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(args: argparse.Namespace) -> int:
    """One line that begins with PASS, or an error."""
    from tahr.server.observe.request_dumps import NAMES, read

    found = checked(read(args.folder))
    manifest = found["manifest"]
    response = found["response"]
    facts = {"id": manifest["id"], "route": manifest["route"], "files": len(NAMES), **response}
    facts.pop("texts", None)
    if args.url:
        facts["replayed"] = replay(found, args.url)
    if args.json:
        print(json.dumps({"verdict": "PASS", **facts}, indent=1))
    else:
        again = ", and gives the same reply again" if args.url else ""
        status = response.get("status")
        print(printable(f"PASS {facts['id']}: {len(NAMES)} files, status {status}, whole and unchanged{again}"))
    return 0


def checked(found: dict[str, Any]) -> dict[str, Any]:
    """A bundle may come from anybody: the parts that are used here must have the shape a server gives them."""
    if not all(isinstance(found[name], dict) for name in ("manifest", "request", "response")):
        raise CorruptFile("The bundle's manifest, request and response must be JSON objects: dump the request again.")
    if not all(isinstance(found["manifest"].get(name), str) for name in ("id", "route")):
        raise CorruptFile("The bundle's manifest states no id and route: dump the request again.")
    return found


def replay(found: dict[str, Any], url: str) -> bool:
    """Send the request once more; another reply is an error."""
    from tahr.server.observe.request_dumps import ROUTES

    if not found["manifest"].get("texts"):
        raise ConfigError("This bundle has no texts, so it cannot be sent again: dump with --request-dump-texts.")
    route = found["manifest"]["route"]
    if route not in ROUTES:  # the API key goes there, so it must be a route of the address the user gave
        raise ConfigError(f"The bundle names the route {route!r}: only {', '.join(ROUTES)} can be sent again.")
    body = {name: value for name, value in found["request"].items() if name not in ("stream", "stream_options", "echo")}
    reply = post(url.rstrip("/") + route, body)
    choices = reply.get("choices")
    texts = [text_of(choice) for choice in choices] if isinstance(choices, list) else []
    if texts != found["response"].get("texts", []):
        raise GenerateError(
            "The reply is another now: the model, the settings or (without a seed) chance have changed."
        )
    return True


def text_of(choice: Any) -> str:
    """The text of a choice of /v1/completions or of /v1/chat/completions."""
    made = choice if isinstance(choice, dict) else {}
    message = made.get("message")
    return str(made.get("text") or (message.get("content") if isinstance(message, dict) else None) or "")


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    import os
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        """Follows no redirect: the API key and the prompt are for the address the user gave."""

        def redirect_request(self, *_: Any) -> None:
            return None

    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url} is no address: write it as http://127.0.0.1:8080.")
    key = os.environ.get("TAHR_API_KEY")
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        with build_opener(Stay).open(Request(url, json.dumps(body).encode(), headers), timeout=TIMEOUT_S) as answer:
            made = json.loads(answer.read(MAX_REPLY_BYTES))
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        raise ServerError(f"{url} did not answer ({error}): start `tahr serve` there first.") from error
    if not isinstance(made, dict):
        raise ServerError(f"{url} answered with something that is no reply of an OpenAI API: check --url.")
    return made
