"""Perplexity of one model in every format, by Tahr and by llama.cpp, on the same files and windows.

usage: benchmarks/perplexity.py MODEL.gguf --peer-python PYTHON [--types Q4_0,Q4_K_S] [--text FILE] [--folder DIR]

The model (a Llama with rows of no multiple of 256, such as SmolLM2-135M) is first made wider with zeros, which changes
nothing it computes, so that formats with blocks of 256 are used in every matrix. Each file is written by Tahr.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tahr import hub
from tahr.backends import open_backend
from tahr.models.loader.load import load, open_model
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.tools.environment import environment, line
from tahr.tools.full_logits import FullLogits
from tahr.tools.gguf_export import export
from tahr.tools.perplexity import Perplexity, Window, logprobs, surprise, windows
from tahr.weights import HostTensor, open_gguf
from tahr.weights.formats import FORMATS
from tahr.weights.gguf_write import Entry, stored_metadata, write_gguf

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
PEER = Path(__file__).with_name("perplexity_llama_cpp.py")
TYPES = "F32,F16,BF16,Q8_0,Q6_K,Q5_1,Q5_0,Q5_K_S,Q4_1,Q4_0,Q4_K_S,IQ4_NL,IQ4_XS,MXFP4,Q3_K_S,Q2_K"
WINDOW, N_UNSCORED, BLOCK = 512, 33, 256
LIMIT = 0.005


@dataclass(frozen=True, slots=True)
class Measured:
    """One type by both engines, and `exact`: the same weights as f32, so that nothing is rounded on the way.

    `kl` is that of Tahr from llama.cpp, `errors` that of each from exact; means over the first window.
    """

    type: str
    ours: Perplexity
    theirs: Perplexity
    exact: Perplexity
    kl: float
    errors: tuple[float, float]

    @property
    def difference(self) -> float:
        return self.ours.value / self.theirs.value - 1

    @property
    def fine(self) -> bool:
        """As llama.cpp within the limit, or closer than llama.cpp to what the weights say."""
        return abs(self.difference) <= LIMIT or self.errors[0] < self.errors[1]


def widened(model: Path, out: Path) -> None:
    """The same function as wider matrices: rows, columns and heads of zeros; norms divide by the new width."""
    opened = open_gguf(model)
    old = {key: opened.metadata[f"llama.{key}"] for key in ("embedding_length", "attention.head_count")}
    width, n_heads = old["embedding_length"], old["attention.head_count"]
    n_kv, eps = (opened.metadata[f"llama.attention.{k}"] for k in ("head_count_kv", "layer_norm_rms_epsilon"))
    head, new_kv = width // n_heads, n_kv
    while new_kv * (n_heads // n_kv) * head % BLOCK:
        new_kv += 1
    new_heads = new_kv * (n_heads // n_kv)
    new = {width: new_heads * head, n_kv * head: new_kv * head}
    changed = {
        "llama.embedding_length": new[width],
        "llama.attention.head_count": new_heads,
        "llama.attention.head_count_kv": new_kv,
        "llama.attention.layer_norm_rms_epsilon": float(eps * width / new[width]),
    }
    gain = math.sqrt(width / new[width])
    entries = [padded_entry(t, new, gain if t.name.endswith("_norm.weight") else 1.0) for t in opened.tensors.values()]
    write_gguf(out, {**stored_metadata(opened), **changed}, entries)


def padded_entry(tensor: HostTensor, new: dict[int, int], factor: float) -> Entry:
    shape = tuple(new.get(n, n) for n in tensor.shape)

    def pieces() -> Iterator[np.ndarray]:
        wide = np.zeros(shape, np.float32)
        wide[tuple(slice(n) for n in tensor.shape)] = tensor.dense() * np.float32(factor)
        yield wide.reshape(-1).view(np.uint8)

    return Entry(tensor.name, FORMATS["F32"], shape, pieces)


def dense(tensor: HostTensor) -> HostTensor:
    """The values a tensor stands for, as f32."""
    return HostTensor(tensor.name, FORMATS["F32"], tensor.shape, tensor.dense().reshape(-1).view(np.uint8))


def by_tahr(path: Path, cut: list[Window], exact: bool = False) -> tuple[Perplexity, np.ndarray]:
    """The perplexity, and the log-probabilities of the first window."""
    backend, source = open_backend("cpu"), open_model([path])
    if exact:
        source = replace(source, tensors={name: dense(tensor) for name, tensor in source.tensors.items()})
    full = FullLogits(backend, load(source, backend).decoder, WINDOW, chunk=WINDOW)
    found = Perplexity.of(np.concatenate([surprise(full, window) for window in cut]))
    (first,) = full.run(cut[0].ids[:-1], N_UNSCORED - 1)
    return found, logprobs(first)


def by_llama_cpp(python: str, path: Path, cut: list[Window], folder: Path) -> tuple[Perplexity, np.ndarray]:
    out = folder / "theirs.npz"
    requested = json.dumps({"windows": [window.ids for window in cut], "begin": N_UNSCORED})
    subprocess.run(
        [python, str(PEER), str(path), str(out)], input=requested, text=True, check=True, capture_output=True
    )
    stored = np.load(out)
    return Perplexity.of(stored["surprise"]), stored["first"]


def mean_kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def measure(kind: str, source: Path, folder: Path, cut: list[Window], python: str) -> Measured:
    path = folder / f"{kind}.gguf"
    export(hub.resolve(str(source)), path, kind)
    exact, e = by_tahr(path, cut, exact=True)
    ours, q = by_tahr(path, cut)
    theirs, p = by_llama_cpp(python, path, cut, folder)
    path.unlink()
    return Measured(kind, ours, theirs, exact, mean_kl(p, q), (mean_kl(e, q), mean_kl(e, p)))


def row(m: Measured) -> str:
    values = f"{m.ours.value:8.3f} | {m.theirs.value:9.3f} | {m.exact.value:8.3f}"
    kls = f"{m.kl:7.5f} | {m.errors[0]:7.5f} | {m.errors[1]:7.5f}"
    verdict = "same" if abs(m.difference) <= LIMIT else "closer to exact" if m.fine else "WORSE"
    return f"| {m.type:6} | {values} | {m.difference:+6.2%} | {kls} | {verdict} |"


def main() -> None:
    """Print a row per type; the exit code tells whether all are within the limit."""
    args = arguments()
    files = [args.text] if args.text else [FIXTURES / name for name in ("articles.txt", "english.txt", "story.txt")]
    ids = Tokenizer.from_gguf(open_gguf(args.model).metadata).encode("\n\n".join(f.read_text() for f in files))
    cut = windows(ids, WINDOW, N_UNSCORED, None)
    n_scored = len(cut) * (WINDOW - N_UNSCORED)
    print(f"{line(environment())}; {args.model.name}, {n_scored} of {len(ids)} tokens scored in windows of {WINDOW}")
    print("| type   | tahr     | llama.cpp | exact    | ratio  | KL      | tahr KL | llama KL | |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    outside = 0
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        wide = Path(name) / "wide.gguf"
        widened(args.model, wide)
        for kind in args.types.split(","):
            found = measure(kind, wide, Path(name), cut, args.peer_python)
            outside += not found.fine
            print(row(found), flush=True)
    sys.exit(f"{outside} types are further from exact than llama.cpp, by more than {LIMIT:.1%}." if outside else 0)


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-python", required=True, help="a Python that has the module llama_cpp")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--text", type=Path, help="another text than the fixtures")
    parser.add_argument("--folder", type=Path, help="where files are written for a while (about 2 GB)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
