"""`tahr replay-bundle`: is a dumped request whole, and does it still give the same reply?"""

import argparse
import json
from pathlib import Path
from typing import Any

from tahr.errors import ConfigError, GenerateError, ServerError

HELP = "check a request that `serve --request-dump-dir` has dumped, or send it again"

EXAMPLES = """\
examples:
  tahr replay-bundle dumps/chatcmpl-1f00                              nine files, all as they were written?
  tahr replay-bundle dumps/chatcmpl-1f00 --url http://127.0.0.1:8080  send it again and compare the replies

Only a bundle of `serve --request-dump-texts` can be sent again: others do not say what was asked."""

TIMEOUT_S = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which bundle, and where to send it."""
    parser.epilog = EXAMPLES
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of one request")
    parser.add_argument("--url", metavar="URL", help="a running server to send the request to (key: TAHR_API_KEY)")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(args: argparse.Namespace) -> int:
    """One line that begins with PASS, or an error."""
    from tahr.server.observe.request_dumps import NAMES, read

    found = read(args.folder)
    manifest, response = found["manifest"], found["response"]
    facts = {"id": manifest["id"], "route": manifest["route"], "files": len(NAMES), **response}
    facts.pop("texts", None)
    if args.url:
        facts["replayed"] = replay(found, args.url)
    if args.json:
        print(json.dumps({"verdict": "PASS", **facts}, indent=1))
    else:
        again = ", and gives the same reply again" if args.url else ""
        print(f"PASS {facts['id']}: {len(NAMES)} files, status {response['status']}, whole and unchanged{again}")
    return 0


def replay(found: dict[str, Any], url: str) -> bool:
    """Send the request once more; another reply is an error."""
    if not found["manifest"].get("texts"):
        raise ConfigError("This bundle has no texts, so it cannot be sent again: dump with --request-dump-texts.")
    body = {name: value for name, value in found["request"].items() if name not in ("stream", "stream_options", "echo")}
    reply = post(url.rstrip("/") + found["manifest"]["route"], body)
    texts = [choice.get("text") or choice.get("message", {}).get("content", "") for choice in reply.get("choices", ())]
    if texts != found["response"].get("texts", []):
        raise GenerateError(
            "The reply is another now: the model, the settings or (without a seed) chance have changed."
        )
    return True


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    import os
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url} is no address: write it as http://127.0.0.1:8080.")
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ.get('TAHR_API_KEY', '')}"}
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=TIMEOUT_S) as answer:
            made: dict[str, Any] = json.load(answer)
            return made
    except (URLError, ValueError) as error:
        raise ServerError(f"{url} did not answer ({error}): start `tahr serve` there first.") from error
