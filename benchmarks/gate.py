"""What a release must do on a backend, each through the surface that a user has; ends with `TAHR GATE cpu PASS`.

usage: python benchmarks/gate.py [MODEL] [--backend cpu]     see `make gate`
Everything that was seen is kept in benchmarks/results/VERSION/BACKEND.json, with commit, binary and configuration.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tahr
from server_process import serving

ROOT = Path(__file__).parents[1]
AT_ONCE = (1, 4, 16, 32)
REPEATS = 3
N_TOKENS = 48
TURNS = ("My name is Ada and I like chess.", "What do I like?", "And what is my name?")
QUESTIONS = [f"Tell me something about the number {number}." for number in range(max(AT_ONCE))]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CARD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "kind": {"enum": ["bird", "fish"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 4},
    },
    "required": ["name", "kind", "legs"],
    "additionalProperties": False,
}


class Failed(Exception):
    """A sentence that says what was seen and what was expected."""


def expect(holds: object, sentence: str) -> None:
    if not holds:
        raise Failed(sentence)


def post(address: str, path: str, body: dict[str, Any]) -> Any:
    return json.loads(b"".join(posted(address, path, body)))


def posted(address: str, path: str, body: dict[str, Any]) -> Iterator[bytes]:
    """Lines of a reply, as they come."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        yield from reply


def chat(question: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": question}
    return {"model": "gate", "messages": [message], "temperature": 0, "max_tokens": N_TOKENS} | more


# Checks. Each gives what it saw, to be kept.


def run_answers(model: str, backend: str) -> dict[str, Any]:
    """`tahr run MODEL -p ...` writes a text and ends with 0."""
    words = ["run", model, "-p", "Hi", "-n", "16", "--temp", "0", "--quiet", "--backend", backend]
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "tahr", *words], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"tahr run ended with {done.returncode}: {done.stderr[-500:]}")
    expect(done.stdout.strip(), "tahr run wrote no text")
    return {"text": done.stdout, "seconds": time.perf_counter() - began}


def serve_answers(address: str) -> dict[str, Any]:
    """A chat, its usage, and the same text again from the prefix cache."""
    replies = [post(address, "/v1/chat/completions", chat(QUESTIONS[0])) for _ in range(2)]
    texts = [reply["choices"][0]["message"]["content"] for reply in replies]
    expect(texts[0] and texts[0] == texts[1], f"one question, two texts: {texts}")
    usage = replies[1]["usage"]
    expect(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], f"usage: {usage}")
    return {"text": texts[0], "usage": usage}


def streams(address: str) -> dict[str, Any]:
    """A stream's pieces are the text that comes whole, and it ends as streams do."""
    whole = post(address, "/v1/chat/completions", chat(QUESTIONS[1]))["choices"][0]["message"]["content"]
    seen = stream(address, QUESTIONS[1])
    expect(seen["text"] == whole, f"streamed {seen['text']!r}, whole {whole!r}")
    return seen


def stream(address: str, question: str) -> dict[str, Any]:
    began = time.perf_counter()
    first_s = 0.0
    pieces = []
    lines = []
    for line in posted(address, "/v1/chat/completions", chat(question, stream=True)):
        lines.append(line.strip())
        if not line.startswith(b"data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            if piece := choice["delta"].get("content"):
                first_s = first_s or time.perf_counter() - began
                pieces.append(piece)
    expect([line for line in lines if line][-1:] == [b"data: [DONE]"], "a stream ended without [DONE]")
    return {"text": "".join(pieces), "first_s": first_s, "seconds": time.perf_counter() - began}


def calls_tools(address: str) -> dict[str, Any]:
    """A required call is whole and its arguments keep the schema."""
    body = chat("How is the weather in Oslo for 3 days?", tools=[WEATHER], tool_choice="required", max_tokens=200)
    choice = post(address, "/v1/chat/completions", body)["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    expect(calls and choice["finish_reason"] == "tool_calls", f"no call: {choice}")
    arguments = json.loads(calls[0]["function"]["arguments"])
    expect(isinstance(arguments["city"], str) and arguments["days"] in range(1, 8), f"arguments: {arguments}")
    return {"arguments": arguments}


def keeps_schemas(address: str) -> dict[str, Any]:
    """A strict schema gives exactly its fields."""
    schema = {"type": "json_schema", "json_schema": {"name": "card", "strict": True, "schema": CARD}}
    body = chat("Describe an animal as JSON.", response_format=schema, max_tokens=200)
    card = json.loads(post(address, "/v1/chat/completions", body)["choices"][0]["message"]["content"])
    expect(sorted(card) == ["kind", "legs", "name"], f"fields: {card}")
    expect(card["kind"] in ("bird", "fish") and card["legs"] in range(5) and len(card["name"]) <= 30, f"{card}")
    return card


def remembers(address: str) -> dict[str, Any]:
    """A chain of responses holds the turns before: each prompt begins with all of the one before it."""
    previous = None
    n_tokens = [0]
    n_cached = []
    for turn in TURNS:
        body = {"model": "gate", "input": turn, "temperature": 0, "max_output_tokens": 24}
        reply = post(address, "/v1/responses", body | ({"previous_response_id": previous} if previous else {}))
        previous = reply["id"]
        n_tokens.append(reply["usage"]["input_tokens"])
        n_cached.append(reply["usage"]["input_tokens_details"]["cached_tokens"])
    expect(n_tokens == sorted(set(n_tokens)), f"prompts did not grow: {n_tokens[1:]}")
    expect(n_cached[-1] > 0, f"nothing came from the prefix cache: {n_cached}")
    return {"input_tokens": n_tokens[1:], "cached_tokens": n_cached}


def answers_many(address: str, n: int, same_bits: bool) -> dict[str, Any]:
    """Streams at once, three times over, each with the text that it has alone where sums keep their order."""
    alone = [stream(address, question)["text"] for question in QUESTIONS[:n]]
    rates = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        with ThreadPoolExecutor(n) as threads:
            seen = list(threads.map(lambda question: stream(address, question), QUESTIONS[:n]))
        rates.append(sum(len(each["text"]) for each in seen) / (time.perf_counter() - began))
        texts = [each["text"] for each in seen]
        expect(all(texts), f"an empty text among {n} at once")
        expect(not same_bits or texts == alone, f"a text among {n} at once is not the one that it is alone")
    return {"characters_per_s": rates}


CHECKS: dict[str, Callable[[str], dict[str, Any]]] = {
    "serve": serve_answers,
    "stream": streams,
    "tools": calls_tools,
    "strict schema": keeps_schemas,
    "stateful loop": remembers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results" / tahr.__version__))
    asked = parser.parse_args()
    kept = {"about": about(asked.model, asked.backend), "checks": {}}
    ok = checked(kept["checks"], "run", lambda: run_answers(asked.model, asked.backend))
    with serving(asked.model, "--backend", asked.backend, "--served-model-name", "gate") as server:
        for name, check in CHECKS.items():
            ok &= checked(kept["checks"], name, partial(check, server.address))
        for n in AT_ONCE:
            same_bits = asked.backend == "cpu"
            ok &= checked(kept["checks"], f"{n} at once", partial(answers_many, server.address, n, same_bits))
    path = Path(asked.out) / f"{asked.backend}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"TAHR GATE {asked.backend} {'PASS' if ok else 'FAIL'}")
    sys.exit(not ok)


def checked(kept: dict[str, Any], name: str, check: Callable[[], dict[str, Any]]) -> bool:
    try:
        kept[name] = {"ok": True} | check()
    except (Failed, OSError, ValueError, KeyError) as error:
        kept[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    print(f"{name:16} {'ok' if kept[name]['ok'] else kept[name]['error']}", flush=True)
    return bool(kept[name]["ok"])


def about(model: str, backend: str) -> dict[str, Any]:
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    specs = [find_spec(name) for name in ("tahr._native", "tahr._vulkan")]
    modules = [Path(spec.origin) for spec in specs if spec and spec.origin]  # not always beside the package
    return {
        "version": tahr.__version__,
        "commit": commit.stdout.strip(),
        "binaries": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in modules},
        "model": model,
        "backend": backend,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.platform(),
    }


if __name__ == "__main__":
    main()
