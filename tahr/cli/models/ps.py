"""`tahr ps`: which models a running server has, and which of them are in memory."""

import argparse
import json
from typing import Any

from tahr.cli.chat.remote import ServerClient
from tahr.cli.verbs.list import print_table
from tahr.hub.progress import human_bytes

HELP = "show which models a running server has loaded"

EXAMPLES = """\
examples:
  tahr ps                                 the server on this machine
  tahr ps --server http://10.0.0.2:8080   another one; TAHR_SERVER_ADMIN_KEY, or else TAHR_API_KEY, is the key
  tahr ps --json | jq .data[].id          for programs"""

DEFAULT_SERVER = "http://127.0.0.1:8080"
MEMORY = {
    "WEIGHTS": "weight_bytes",
    "ON-HOST": "host_weight_bytes",
    "KV-RESERVED": "kv_reserved_bytes",
    "KV-USED": "kv_used_bytes",
    "KV-HOST": "kv_host_bytes",
    "KV-DISK": "kv_disk_bytes",
}
HEAD = ("NAME", "STATE", *MEMORY, "CONTEXT", "REQUESTS", "UNTIL")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr ps` takes."""
    parser.epilog = EXAMPLES
    add_server(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_server(parser: argparse.ArgumentParser) -> None:
    text = f"the server's address (default {DEFAULT_SERVER})"
    parser.add_argument("--server", default=DEFAULT_SERVER, metavar="URL", help=text)


def admin_client(address: str) -> ServerClient:
    """A client with the admin's key, if there is one."""
    return ServerClient(address, ("TAHR_SERVER_ADMIN_KEY", "TAHR_API_KEY"))


def run(args: argparse.Namespace) -> int:
    """Print the table, or the server's own JSON."""
    found = admin_client(args.server).json("/admin/models")
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        print_table([HEAD, *(row(each) for each in found["data"])])
    return 0


def row(entry: dict[str, Any]) -> tuple[str, ...]:
    context = entry["context_size"]
    left_s = entry["expires_in_s"]
    n_requests = entry["active_requests"] + entry["waiting_requests"]
    is_loaded = entry["state"] == "loaded"
    until = f"{left_s:.0f} s from now" if left_s is not None else "always" if is_loaded else ""
    return entry["id"], entry["state"], *memory_of(entry["memory"]), str(context or ""), str(n_requests), until


def memory_of(memory: dict[str, int] | None) -> list[str]:
    """Weights and those that a GPU's model has on the host; for keys and values what is reserved, in use, elsewhere."""
    return [human_bytes(memory.get(name, 0)) if memory else "" for name in MEMORY.values()]
