"""A hostile client: every attack over HTTP we know, one after another in random order, each bounded in time and bytes.

usage: benchmarks/attacks.py http://127.0.0.1:PORT [--seconds 300] [--attack-seconds 4] [--seed 0]
hostile.py starts it beside ordinary streams.
"""

import argparse
import json
import random
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

CHAT, TEXT, EMBED, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"
AUDIO = "/v1/audio/transcriptions"
FILES, BATCHES = "/v1/files", "/v1/batches"
MAX_HELD = 32  # connections held open without reading
HELLO = [{"role": "user", "content": "hello"}]
IDS = list(range(3, 250))


class Target:
    """Where the server listens, and the connections that are held open on purpose."""

    def __init__(self, address: str, rng: random.Random, attack_s: float):
        url = urlsplit(address)
        assert url.hostname == "127.0.0.1" and url.port, "attacks stay on this machine"
        self.address, self.rng = (url.hostname, url.port), rng
        self.attack_s = attack_s  # the longest a single attack keeps at it
        self._held: deque[socket.socket] = deque()

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with self.connect() as made:
            yield made

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=self.attack_s)

    def hold(self, connection: socket.socket) -> None:
        """Keep it open and unread; the oldest are let go."""
        self._held.append(connection)
        while len(self._held) > MAX_HELD:
            self._held.popleft().close()


def head(path: str, n_bytes: int, *more: str, host: str = "127.0.0.1", kind: str = "application/json") -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", f"content-type: {kind}", *more]
    if n_bytes >= 0:
        lines.append(f"content-length: {n_bytes}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(path: str, body: Any) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, len(data)) + data


def read(connection: socket.socket, seconds: float) -> None:
    """Read for a while, so that a reply in pieces cannot keep the attacker for ever either."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and connection.recv(1 << 20):
        pass


def exchange(target: Target, data: bytes) -> None:
    with target.connected() as connection:
        connection.sendall(data)
        read(connection, target.attack_s)


def send(path: str, body: Any) -> Callable[[Target], None]:
    """An attack that is one request, its reply read."""
    data = whole(path, body)
    return lambda target: exchange(target, data)


def send_and_leave(path: str, body: Any, after_s: float = 0.2) -> Callable[[Target], None]:
    """An attack that hangs up without reading."""
    data = whole(path, body)

    def attack(target: Target) -> None:
        with target.connected() as connection:
            connection.sendall(data)
            time.sleep(after_s)
            if target.rng.random() < 0.5:  # a reset instead of an orderly end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return attack


def send_unread(path: str, body: Any) -> Callable[[Target], None]:
    """An attack that holds the connection and reads nothing."""
    data = whole(path, body)

    def attack(target: Target) -> None:
        connection = target.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(data)
        target.hold(connection)

    return attack


def drip(target: Target, start: bytes, piece: bytes, pause_s: float) -> None:
    """Send a little at a time for as long as an attack may take."""
    with target.connected() as connection:
        connection.sendall(start)
        until = time.monotonic() + target.attack_s
        while time.monotonic() < until:
            connection.sendall(piece)
            time.sleep(pause_s)


def trailers(target: Target) -> None:
    """A chunked body whose trailers do not end, 16 MB of them."""
    line = b"x-padding: " + b"a" * 4000 + b"\r\n"
    with target.connected() as connection:
        connection.sendall(head(CHAT, -1, "transfer-encoding: chunked") + b"2\r\n{}\r\n0\r\n")
        for _ in range(4000):
            connection.sendall(line)
        read(connection, 1)


def dripped_trailers(target: Target) -> None:
    drip(target, head(CHAT, -1, "transfer-encoding: chunked") + b"2\r\n{}\r\n0\r\n", b"x-a: b\r\n" * 50, 0.05)


def dripped_body(target: Target) -> None:
    drip(target, head(CHAT, 100_000), b'{"m' * 3, 0.1)


def dripped_header(target: Target) -> None:
    drip(target, b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"x-a: b\r\n", 0.1)


def body_after_the_answer(target: Target) -> None:
    """The route does not exist, so the answer comes first; the body goes on for seconds."""
    drip(target, head("/absent", 9_000_000), b"a" * 1000, 0.02)


def idle_connections(target: Target) -> None:
    """A hundred connections that say nothing for a second."""
    opened = [target.connect() for _ in range(100)]
    time.sleep(1)
    for connection in opened:
        connection.close()


def foreign_hosts(target: Target) -> None:
    body = json.dumps({"messages": HELLO}).encode()
    for host in ("evil.example", "127.0.0.1.evil.example", "a" * 5000, "localhost:99999", "\u2028"):
        exchange_quietly(target, head(CHAT, len(body), "connection: close", host=host) + body)


def upgrade(target: Target) -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
    more = ("connection: upgrade, close", "upgrade: websocket")
    exchange_quietly(target, head(CHAT, len(body), *more) + body)


def pipelined(target: Target) -> None:
    """Three hundred requests at once on one connection."""
    exchange(target, b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 300)


def noise(target: Target) -> None:
    exchange_quietly(target, b"\x16\x03\x01" + target.rng.randbytes(2000))
    exchange_quietly(target, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)


def exchange_quietly(target: Target, data: bytes) -> None:
    """One of several exchanges of an attack: a server that closes early ends only this one."""
    with suppress(OSError):
        exchange(target, data)


def nested(depth: int) -> bytes:
    return b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"


def kwargs(value: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 1, "chat_template_kwargs": value}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def form(data: bytes) -> Callable[[Target], None]:
    """A form for a recording, its reply read."""
    whole_form = head(AUDIO, len(data), kind="multipart/form-data; boundary=b") + data
    return lambda target: exchange(target, whole_form)


def field(name: str, value: bytes) -> bytes:
    return b'--b\r\ncontent-disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + value + b"\r\n"


# ---- files and batches, which a server with --state-dir keeps -------------------------------------------------------


def file_form(data: bytes) -> bytes:
    file = b'--b\r\ncontent-disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\n' + data + b"\r\n"
    return field("purpose", b"batch") + file + b"--b--\r\n"


def replied(target: Target, data: bytes) -> Any:
    """The JSON of a reply that has some."""
    with target.connected() as connection:
        connection.sendall(data.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        read = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return json.loads(read.partition(b"\r\n\r\n")[2])


def uploaded(target: Target, data: bytes) -> str:
    sent = file_form(data)
    made = replied(target, head(FILES, len(sent), kind="multipart/form-data; boundary=b") + sent)
    return str(made.get("id", "none"))


def ask(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()


def batch_of(file: str) -> bytes:
    return whole(BATCHES, {"input_file_id": file, "endpoint": TEXT, "completion_window": "24h"})


def batch_line(name: int, body: Any) -> bytes:
    return json.dumps({"custom_id": str(name), "method": "POST", "url": TEXT, "body": body}).encode() + b"\n"


def batched(lines: Callable[[], list[bytes]]) -> Callable[[Target], None]:
    """An attack that is a batch, which is cancelled when the attack is over."""

    def attack(target: Target) -> None:
        file = uploaded(target, b"".join(lines()))
        batch = replied(target, batch_of(file)).get("id", "none")
        time.sleep(target.attack_s / 2)
        replied(target, ask(f"{BATCHES}/{batch}/cancel", "POST"))
        time.sleep(target.attack_s / 2)
        replied(target, ask(f"{FILES}/{file}", "DELETE"))

    return attack


def heavy_lines() -> list[bytes]:
    """Each line is one of the attacks that are requests."""
    bodies = [
        {"prompt": (WORDS * 50_000)[:2_600_000], "max_tokens": 1},
        {"prompt": IDS, "n": 128, "prompt_logprobs": 20, "max_tokens": 1},
        {"prompt": ["hello"] * 200, "n": 16, "max_tokens": 1},
        {"prompt": "a", "max_tokens": 50, "grammar": chained(20_000)},
        {"prompt": "a", "max_tokens": 50, "guided_grammar": AMBIGUOUS},
        {"prompt": "a", "max_tokens": 50, "guided_json": PROPERTIES},
        {"prompt": "goat", "n": 8, "max_tokens": 400, "ignore_eos": True, "logprobs": 5},
    ]
    return [batch_line(i, bodies[i % len(bodies)]) for i in range(40)]


def file_in_tiny_pieces(target: Target) -> None:
    drip(target, tiny_start(), b"2\r\nxy\r\n" * 2000, 0.0)


def dripped_file(target: Target) -> None:
    drip(target, tiny_start(), b"1\r\nx\r\n", 0.001)


def tiny_start() -> bytes:
    begin = file_form(b"")[: -len(b"\r\n--b--\r\n")]
    start = head(FILES, -1, "transfer-encoding: chunked", kind="multipart/form-data; boundary=b")
    return start + b"%x\r\n%b\r\n" % (len(begin), begin)


def many_files(target: Target) -> None:
    """Files of a byte, one after the other, and the list of all of them."""
    until = time.monotonic() + target.attack_s
    made = []
    while time.monotonic() < until and len(made) < 200:
        made.append(uploaded(target, b"x"))
    for _ in range(20):
        replied(target, ask(FILES))
    for file in made:
        replied(target, ask(f"{FILES}/{file}", "DELETE"))


def many_batches(target: Target) -> None:
    """As many batches of one file as it takes, and all of them cancelled."""
    file = uploaded(target, batch_line(0, {"prompt": IDS, "max_tokens": 200, "ignore_eos": True}))
    made = [replied(target, batch_of(file)).get("id", "none") for _ in range(120)]
    for batch in made:
        replied(target, ask(f"{BATCHES}/{batch}/cancel", "POST"))


def unread_content(target: Target) -> None:
    """A file of 8 MB that thirty clients begin to read."""
    file = uploaded(target, b"x" * 8_000_000)
    for _ in range(30):
        connection = target.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(ask(f"{FILES}/{file}/content"))
        target.hold(connection)
    replied(target, ask(f"{FILES}/{file}", "DELETE"))


def odd_questions(target: Target) -> None:
    """Ids and queries that are none, about files, batches and usage."""
    ids = ["..", "%2e%2e%2f", "file-" + "0" * 32, "x" * 5000, "file-*", "%00", "%ff", ";", "batch_" + "f" * 32]
    queries = ["limit=0", "limit=1e9", "limit=" + "9" * 4000, "after=x", "order=x", "a=b&" * 2000, "limit=1&limit=1"]
    paths = [f"{base}/{id}{end}" for base in (FILES, BATCHES) for id in ids for end in ("", "/content", "/cancel")]
    paths += [f"{base}?{query}" for base in (FILES, BATCHES) for query in queries]
    paths += [f"/v1/usage?days={days}" for days in ("0", "-1", "401", "1e3", "9" * 4000, "x", "%00")]
    for path in paths:
        exchange_quietly(target, ask(path).replace(b"\r\n", b"\r\nconnection: close\r\n", 1))


WORDS = "one goat after another went up the hill and came down again, "


def grammar(field: str, source: Any) -> dict[str, Any]:
    return {"prompt": "a", "max_tokens": 50, "stream": True, field: source}


def chained(n_rules: int, width: int = 1) -> str:
    """Rules of GBNF that each name the next."""
    rules = [f"r{i} ::= " + " ".join([f"r{i + 1}"] * width) for i in range(n_rules)]
    return "\n".join(["root ::= r0", *rules, f'r{n_rules} ::= "a"'])


AMBIGUOUS = 'start: a "80"\na: a a | "x" | "y" | " " | "e"'
PROPERTIES = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(9000)}}

ATTACKS: dict[str, Callable[[Target], None]] = {
    "2.6 MB of prompt": send(TEXT, {"prompt": (WORDS * 50_000)[:2_600_000], "max_tokens": 1}),
    "9.9 MB to tokenise": send(TOKENIZE, {"content": (WORDS * 200_000)[:9_900_000]}),
    "9.9 MB without a space": send(TOKENIZE, {"content": "a" * 9_900_000}),
    "2 MB of a chat": send(CHAT, {"messages": [{"role": "user", "content": (WORDS * 40_000)[:2_000_000]}]}),
    "n times prompt_logprobs": send(TEXT, {"prompt": IDS, "n": 128, "prompt_logprobs": 20, "max_tokens": 1}),
    "n times echoed logprobs": send(TEXT, {"prompt": IDS, "n": 64, "echo": True, "logprobs": 5, "max_tokens": 1}),
    "prompts times n": send(TEXT, {"prompt": ["hello"] * 200, "n": 16, "max_tokens": 1}),
    "embeddings of many ids": send_and_leave(EMBED, {"input": [IDS] * 64}),
    "embeddings of many texts": send_and_leave(EMBED, {"input": ["goat"] * 2000}),
    "embeddings unread": send_unread(EMBED, {"input": ["goat"] * 500}),
    "a stream unread": send_unread(CHAT, {"messages": HELLO, "stream": True, "max_tokens": 200}),
    "logprobs unread": send_unread(TEXT, {"prompt": IDS, "n": 8, "prompt_logprobs": 20, "max_tokens": 1}),
    "a stream left": send_and_leave(CHAT, {"messages": HELLO, "stream": True, "max_tokens": 200, "n": 4}),
    "trailers without end": trailers,
    "dripped trailers": dripped_trailers,
    "a dripped body": dripped_body,
    "a dripped header": dripped_header,
    "a body after the answer": body_after_the_answer,
    "idle connections": idle_connections,
    "foreign hosts": foreign_hosts,
    "an upgrade with a body": upgrade,
    "pipelined requests": pipelined,
    "noise": noise,
    "deep JSON": send(CHAT, nested(4_000_000)),
    "a number of 4 million digits": send(CHAT, b'{"messages": [], "max_tokens": ' + b"9" * 4_000_000 + b"}"),
    "a bias key of 5,000 digits": send(CHAT, {"messages": HELLO, "logit_bias": {"9" * 5000: 1}}),
    "100,000 biases": send(CHAT, {"messages": HELLO, "logit_bias": {str(i): 1 for i in range(100_000)}}),
    "100,000 stops": send(CHAT, {"messages": HELLO, "max_tokens": 1, "stop": [f"x{i}" for i in range(100_000)]}),
    "infinite temperature": send(CHAT, b'{"messages": [], "temperature": 1e999}'),
    "deep template arguments": send(CHAT, kwargs(deep(900))),
    "wide template arguments": send(CHAT, kwargs({f"k{i}": "v" * 100 for i in range(50_000)})),
    "10,000 fields": form(field("prompt", b"x") * 10_000),
    "a form without an end": form(field("file", b"\r\n--" * 3_000_000)),
    "a boundary of many lines": form(field("file", b"\r\n--a\r\n--" * 1_000_000) + b"--b--"),
    "a prompt of 9 MB": form(field("prompt", b"x" * 9_000_000) + b"--b--"),
    "a recording of zeros": form(field("file", bytes(9_000_000)) + b"--b--"),
    "100,000 messages": send(CHAT, {"messages": HELLO * 100_000, "max_tokens": 1}),
    "40,000 chained rules": send(TEXT, grammar("grammar", chained(40_000))),
    "40,000 chained rules left": send_and_leave(TEXT, grammar("grammar", chained(40_000))),
    "rules that double": send(TEXT, grammar("grammar", chained(20, width=2))),
    "9,000 words": send(TEXT, grammar("grammar", "root ::= " + " | ".join(f'"w{i}"' for i in range(9000)))),
    "60,000 alternatives": send(TEXT, grammar("grammar", "root ::= " + " | ".join(['"a"'] * 60_000))),
    "ambiguous Lark": send(TEXT, grammar("guided_grammar", AMBIGUOUS)),
    "ambiguous Lark left": send_and_leave(TEXT, grammar("guided_grammar", AMBIGUOUS)),
    "9,000 properties": send_and_leave(TEXT, grammar("guided_json", PROPERTIES)),
    "a file in tiny pieces": file_in_tiny_pieces,
    "a dripped file": dripped_file,
    "a file of 9 MB of zeros": lambda target: replied(target, batch_of(uploaded(target, bytes(9_000_000)))),
    "files of a byte": many_files,
    "as many batches as it takes": many_batches,
    "a batch of attacks": batched(heavy_lines),
    "a batch of 50,001 lines": batched(lambda: [batch_line(i, {"prompt": "a"}) for i in range(50_001)]),
    "a batch of noise": batched(lambda: [b"[" * 1000 + b"\n"] * 2000),
    "the content of a file unread": unread_content,
    "odd ids and queries": odd_questions,
    "usage, 300 times": lambda target: exchange(target, ask("/v1/usage?days=400") * 300),
    "counted repetitions": send(TEXT, grammar("guided_regex", "((a{1,900}){1,900}){1,900}")),
}  # fmt: skip


def main() -> None:
    """Attack until the time is over; print how often each attack was made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--attack-seconds", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(ATTACKS), help="this attack (repeatable)")
    args = parser.parse_args()
    target = Target(args.address, random.Random(args.seed), args.attack_seconds)
    made: Counter[str] = Counter()
    until = time.monotonic() + args.seconds
    while time.monotonic() < until:
        names = list(args.only or ATTACKS)
        target.rng.shuffle(names)
        for name in names:
            if time.monotonic() > until:
                break
            began = time.monotonic()
            with suppress(OSError, ValueError):  # refused, reset, cut off or timed out: what attackers get
                ATTACKS[name](target)
            made[name] += 1
            print(f"{began:.3f} {time.monotonic():.3f} {name}", file=sys.stderr, flush=True)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
