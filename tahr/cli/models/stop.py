"""`tahr stop`: end a server on this machine, or unload a model of a running one."""

import argparse
import sys

from tahr.cli.models.ps import DEFAULT_SERVER, add_server, admin_client
from tahr.cli.settings.sizes import whole_number
from tahr.errors import ConfigError
from tahr.server.status import servers

HELP = "end a running server, or unload one of its models; requests finish first"

EXAMPLES = """\
examples:
  tahr stop                     end the server on this machine
  tahr stop --port 9000         the one on this port
  tahr stop qwen3:0.6b          free a model's memory; the next request for it loads it again
  tahr ps                       what is loaded"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tahr stop` takes."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a model to unload, as `tahr ps` shows it")
    parser.add_argument("-p", "--port", type=whole_number, help="the port of the server to end")
    add_server(parser)


def run(args: argparse.Namespace) -> int:
    """Do either, and answer when the memory is free."""
    if args.model is None and args.server != DEFAULT_SERVER:
        raise ConfigError("--server names a server whose MODEL is to be unloaded: a server ends on its own machine.")
    if args.model is None:
        return end_server(args.port)
    if args.port is not None:
        raise ConfigError("--port names a server to end: for a MODEL to unload, give the address as --server URL.")
    entry = admin_client(args.server).json("/admin/models/unload", {"model": args.model})
    print(f"{entry['id']} is {entry['state']}.", file=sys.stderr)
    return 0


def end_server(port: int | None) -> int:
    """End the one server that is meant; none is no error."""
    found = [server for server in servers.running() if port in (None, server.port)]
    if not found:
        print(f"No server of yours runs here{f' on port {port}' if port else ''}.", file=sys.stderr)
        return 0
    server = servers.the_one(found)
    print(f"Ending the server on {server.address} (process {server.pid}).", file=sys.stderr)
    server.end()
    return 0
