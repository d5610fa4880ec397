"""A hook of schemathesis: bodies with few fields, so that many get past the checks and reach the engine.

With all of some seventy fields made up at once, one of them is nearly always refused.
"""

import json
from random import Random
from typing import Any

import schemathesis

ALWAYS = ("messages", "prompt", "input", "tokens", "max_tokens")
N_MORE = 4
MAX_N = 4  # answers: more take long and show nothing new
# Fields that may be left out only where another says as much: most made-up bodies have neither.
NEEDED = {
    "/v1/responses": {"input": "Hello."},
    "/v1/embeddings": {"input": "Hello."},
    "/tokenize": {"prompt": "Hello."},
}
EXCLUDED = {  # by what is needed
    "/v1/embeddings": ("messages", "modality"),
    "/tokenize": ("content", "messages", "tools", "chat_template_kwargs"),
}
PLAIN = 0.8  # the share of messages without parts, calls and their results, of which one too is nearly always refused


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    dice = Random(json.dumps(body, sort_keys=True, default=str))  # the same body is thinned in the same way
    others = sorted(set(body) - {*ALWAYS, "model"})
    kept = {*ALWAYS, *dice.sample(others, min(N_MORE, len(others)))}
    needed = NEEDED.get(context.operation.path, {})
    thin = needed | {name: value for name, value in body.items() if name in kept and (value or name not in needed)}
    for name in EXCLUDED.get(context.operation.path, ()):
        thin.pop(name, None)
    if context.operation.path == "/v1/embeddings" and dice.random() < PLAIN:
        thin["input"] = texts_of(thin["input"])
    for name in ("messages", "input"):
        if isinstance(thin.get(name), list):
            thin[name] = [plain(message) if dice.random() < PLAIN else message for message in thin[name]]
    return thin | {"n": min(thin["n"], MAX_N)} if thin.get("n") else thin


def texts_of(entries: Any) -> Any:
    """Inputs of an embedding without images, which the model here does not read."""
    if isinstance(entries, list):
        return [texts_of(entry) for entry in entries]
    return "Hello." if isinstance(entries, dict) else entries


def plain(message: Any) -> Any:
    return (
        {"role": message["role"], "content": "Hello."} if isinstance(message, dict) and "role" in message else message
    )
