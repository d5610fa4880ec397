"""How far a chat travels through our code: functions and files on its way in and out, and who carries a parameter.

usage: benchmarks/hops.py [MODEL] [--names]          MODEL has a chat template; smollm2:135m unless given

A server runs in this process and answers streamed chats over a socket, one at a time, under `sys.setprofile`. On the
way in, from the body's arrival to the sequence in the waiting queue, each named function of ours counts once, once more
with parameters that no request has had (what is kept by parameters is then made anew). On the way out, a token counts
from the engine's handing out of a step to the write to its socket. Carriers are records with a field that holds the
temperature, a number no other thing has, as a number or packed in memory; a field of a nested record counts for that
record. The constants below say where ways begin and end, and must follow the code.
"""

import argparse
import ast
import json
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import tahr
from tahr.cli.main import main as command_line

# Where ways begin and end, by the end of a function's qualified name.
BODY_ARRIVES = "BoundedProtocol.on_body"
IS_QUEUED = "WaitingQueue.add"
IS_HANDED_OUT = "Engine._hand_out"
GOES_ON = ("AsyncLLM._run_commands", "Engine.step")  # the thread that hands out is done with the token
IS_WRITTEN = "CoalescingTransport._send"
IS_SAMPLED = "Sampler.launch"
# Functions that look at parameters or fill them in, by the beginning of their names.
CHECKS = ("check", "checked", "clean_", "keep_conventions", "holds", "asks_for", "give_way", "over", "precedence",
          "complete", "sampling_params", "sampling_values", "are_tokens")  # fmt: skip

OURS = str(Path(tahr.__file__).resolve().parent)
TEMPERATURE = 0.7321
PACKED = (struct.pack("=d", TEMPERATURE), struct.pack("=f", TEMPERATURE))
N_TOKENS, MIDDLE = 32, slice(12, 20)
HOST = "Host: localhost"
HEALTH = f"GET /health HTTP/1.1\r\n{HOST}\r\nConnection: close\r\n\r\n"
DEPTH = 3  # records within records that are looked into
Call = tuple[int, CodeType]  # which thread called what


class Profile:
    """Calls of our functions while it records; of other threads too, if they began after `install`."""

    def __init__(self) -> None:
        self.calls: list[Call] | None = None
        self.look: Callable[[FrameType, str, Any], None] | None = None

    def install(self) -> None:
        threading.setprofile(self)

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        calls = self.calls
        look = self.look
        if calls is None or not frame.f_code.co_filename.startswith(OURS):
            return
        if event == "call":
            calls.append((threading.get_ident(), frame.f_code))
        if look and event in ("call", "return"):
            look(frame, event, arg)


def is_named(code: CodeType) -> bool:
    return not code.co_name.startswith("<")


def name_of(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(OURS)}: {code.co_qualname}"


def first(calls: list[Call], name: str, begin: int = 0) -> int:
    """Where a function is called first, from a place on."""
    for i in range(begin, len(calls)):
        if calls[i][1].co_qualname.endswith(name):
            return i
    sys.exit(f"{name} was not called: put its name today into the constants of this file.")


def way_in(calls: list[Call]) -> list[CodeType]:
    begin = first(calls, BODY_ARRIVES)
    return [code for _, code in calls[begin : first(calls, IS_QUEUED, begin) + 1] if is_named(code)]


def ways_out(calls: list[Call]) -> Iterator[list[CodeType]]:
    """Of each token in the middle. The part of the thread that hands out ends where it turns to something else."""
    handed = [i for i, (_, code) in enumerate(calls) if code.co_qualname.endswith(IS_HANDED_OUT)]
    for begin in handed[MIDDLE]:
        end = first(calls, IS_WRITTEN, begin)
        own = calls[begin][0]
        is_done = False
        way: list[CodeType] = []
        for thread, code in calls[begin : end + 1]:
            is_done = is_done or (thread == own and code.co_qualname.endswith(GOES_ON))
            if is_named(code) and not (thread == own and is_done):
                way.append(code)
        yield way


# ---- who carries the temperature ------------------------------------------------------------------------------------


class Carriers:
    """Records of ours, and plain containers, that were seen with the temperature in a field."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[object, str]] = {}  # by identity, each kept, with where it was seen first
        self.fields: dict[str, set[str]] = {}  # by type
        self.is_on = False

    def look(self, frame: FrameType, event: str, arg: Any) -> None:
        """Between the body and the sampler, look at all a frame knows."""
        name = frame.f_code.co_qualname
        self.is_on = self.is_on or name.endswith(BODY_ARRIVES)
        if not self.is_on:
            return
        seen: set[int] = set()
        for value in (*frame.f_locals.values(), arg):
            self._look_into(value, name, DEPTH, seen)
        if name.endswith(IS_SAMPLED) and event == "return":
            self.is_on = False

    def _look_into(self, value: Any, where: str, depth: int, seen: set[int]) -> None:
        if id(value) in seen or not depth:
            return
        seen.add(id(value))
        for field, held in fields_of(value):
            if is_temperature(field, held):
                self.found.setdefault(id(value), (value, where))
                self.fields.setdefault(kind_of(value), set()).add(field)
            elif is_ours(type(held)) or isinstance(held, dict | tuple | list):
                self._look_into(held, where, depth - 1, seen)

    def places(self, ours: bool) -> dict[str, list[str]]:
        """By type, where each instance was seen first."""
        places: dict[str, list[str]] = {}
        for value, where in self.found.values():
            if is_ours(type(value)) is ours:
                places.setdefault(kind_of(value), []).append(where)
        return places


def kind_of(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == tahr.__name__


def is_temperature(field: str, value: Any) -> bool:
    """The number itself, or memory with it: packed in bytes, in rows with a field of that name, in an array so named.

    Other arrays do not count: their memory may be left from before.
    """
    if isinstance(value, np.ndarray):
        is_named = "temperature" in field or "temperature" in (value.dtype.names or ())
        return is_named and any(each in value.tobytes() for each in PACKED)
    if isinstance(value, bytes):
        return PACKED[0] in value
    return isinstance(value, float) and value == TEMPERATURE


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What a record or a small container holds; no property is run."""
    if isinstance(value, dict):
        yield from ((str(key), held) for key, held in list(value.items())[:200])
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, list | tuple):
        yield from ((str(i), held) for i, held in enumerate(value[:200]))
    elif is_ours(type(value)):
        yield from getattr(value, "__dict__", {}).items()
        slots = [slot for kind in type(value).__mro__ for slot in slots_of(kind)]
        yield from ((slot, getattr(value, slot)) for slot in slots if hasattr(value, slot))


def slots_of(kind: type) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    names = (found,) if isinstance(found, str) else tuple(found)
    return tuple(name for name in names if not name.startswith("__"))


# ---- the server and its client --------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def serve(model: str, port: int) -> None:
    options = ["--port", str(port), "--log-interval", "0"]
    threading.Thread(target=command_line, args=(["serve", model, *options],), daemon=True).start()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if b" 200 " in reply(port, HEALTH.encode())[:20]:
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit("The server did not open within two minutes.")


def reply(port: int, request: bytes) -> bytes:
    parts = []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def chat(port: int, **params: Any) -> None:
    """One streamed chat, read to its end."""
    messages = [{"role": "user", "content": "Tell me about the sea."}]
    body = {"messages": messages, "stream": True, "max_tokens": N_TOKENS, "ignore_eos": True, **params}
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1", HOST, "Connection: close", f"Content-Length: {len(data)}"
    got = reply(port, "\r\n".join((*head, "", "")).encode() + data)
    if b"[DONE]" not in got:
        sys.exit(f"The chat failed: {got[:400]!r}")


def profiled(profile: Profile, port: int, **params: Any) -> list[Call]:
    profile.calls = calls = []
    chat(port, **params)
    time.sleep(0.2)
    profile.calls = None
    return calls


# ---- figures --------------------------------------------------------------------------------------------------------


def function_lengths() -> list[int]:
    trees = [ast.parse(path.read_text()) for path in Path(OURS).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def print_way(what: str, codes: list[CodeType], names: bool) -> None:
    known = set(codes)
    n_files = len({code.co_filename for code in known})
    print(f"{what:<58} {len(known):4} functions in {n_files:3} files, {len(codes):5} calls")
    if names:
        print(*sorted(f"    {name_of(code)}" for code in known), sep="\n")


def print_carriers(carriers: Carriers) -> None:
    for what, ours in (("records of ours that hold the temperature", True), ("plain containers that do", False)):
        places = carriers.places(ours)
        print(f"{what:<58} {sum(map(len, places.values())):4} of {len(places)} types")
        for kind, where in places.items():
            fields = f" ({', '.join(sorted(carriers.fields[kind]))})" if ours else ""
            print(f"    {len(where):4} {kind}{fields}, first seen in {', '.join(where)}")


def print_checks(codes: list[CodeType]) -> None:
    counted = Counter(name_of(code) for code in codes if code.co_name.startswith(CHECKS))
    print(
        f"{'calls of functions that check or fill in parameters':<58} {counted.total():4} of {len(counted)} functions"
    )
    print(*(f"    {n:4} {name}" for name, n in counted.most_common()), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--names", action="store_true", help="list the functions")
    args = parser.parse_args()
    profile = Profile()
    carriers = Carriers()
    port = free_port()
    profile.install()
    serve(args.model, port)
    usual: Mapping[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 1}
    for _ in range(2):
        chat(port, **usual)
    known = profiled(profile, port, **usual)
    new = profiled(profile, port, **{**usual, "temperature": 0.6123})
    profile.look = carriers.look
    profiled(profile, port, **{**usual, "temperature": TEMPERATURE})
    print_way("body to waiting queue, parameters seen before", way_in(known), args.names)
    print_way("body to waiting queue, new parameters", way_in(new), args.names)
    outs = sorted(ways_out(known), key=lambda out: len(set(out)))
    print_way("a token to its socket (median of the middle, text known)", outs[len(outs) // 2], args.names)
    print_carriers(carriers)
    print_checks(way_in(new))
    lengths = function_lengths()
    p90 = lengths[int(len(lengths) * 0.9)]
    print(f"{'our functions':<58} {len(lengths):4}, median {statistics.median(lengths):g} lines, p90 {p90} lines")


if __name__ == "__main__":
    main()
