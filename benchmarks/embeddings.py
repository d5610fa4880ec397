"""Texts per second of embeddings: Tahr, sentence-transformers and llama.cpp take turns on the same texts.

usage: benchmarks/embeddings.py [MODEL] [-n 10000] [--turns 3] [-t THREADS] [--transformers PYTHON] [--llama PYTHON]

MODEL (default: minilm) is a BERT in the form of sentence-transformers. PYTHON is an interpreter that has the module;
without it that engine is left out. llama.cpp gets a GGUF that is made here, in F32 and in Q8_0, and so does Tahr.
Every engine has a process of its own and tokenises by itself. A turn embeds all texts; the best turn counts, because
a turn that shares the machine says nothing. CPU seconds are of the whole process.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [
    *("the", "a", "of", "and", "in", "to", "time", "people", "water", "light", "house", "river", "market", "teacher"),
    *("engine", "winter", "green", "small", "large", "old", "writes", "reads", "builds", "finds", "sells", "paints"),
    *("measures", "remembers", "bread", "music", "paper", "window", "garden", "story", "number", "city", "quantum"),
    *("theorem", "climate", "history", "language", "computer", "sailor", "village", "doctor"),
]

TAHR = """
from tahr import LLM
llm = LLM(MODEL, n_threads=THREADS, **({"quantize": QUANTIZE} if QUANTIZE else {}))
embed = lambda texts: llm.embed(texts, truncate=-1).tolist()
"""
TRANSFORMERS = """
import torch
torch.set_num_threads(THREADS)
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(MODEL, device="cpu")
embed = lambda texts: model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False).tolist()
"""
LLAMA = """
import llama_cpp
model = llama_cpp.Llama(MODEL, embedding=True, n_ctx=512, n_batch=2048, n_ubatch=2048, n_threads=THREADS,
                        n_threads_batch=THREADS, verbose=False)
embed = lambda texts: model.embed(texts, normalize=True, truncate=True)
"""
SERVE = """
import json, sys, time
texts = json.load(open(TEXTS))
embed(texts[:64])
print("ready", flush=True)
for line in sys.stdin:
    cpu, wall = time.process_time(), time.perf_counter()
    found = embed(texts)
    took = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"wall_s": took[0], "cpu_s": took[1], "first": found[:20]}), flush=True)
"""


@dataclass
class Contestant:
    """An engine in a process of its own."""

    name: str
    program: str
    python: str
    values: dict[str, Any]
    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)
    vectors: Any = None
    process: Any = None

    def start(self) -> None:
        head = "\n".join(f"{name} = {value!r}" for name, value in self.values.items())
        command = [self.python, "-c", f"{head}\n{self.program}\n{SERVE}"]
        env = {**os.environ, "PYTHONPATH": "."} if self.python == sys.executable else {**os.environ, "PYTHONPATH": ""}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout.readline().strip() == "ready", f"{self.name} did not start"

    def run(self) -> None:
        """One turn."""
        print(file=self.process.stdin, flush=True)
        said = json.loads(self.process.stdout.readline())
        self.walls.append(said["wall_s"])
        self.cpus.append(said["cpu_s"])
        self.vectors = np.array(said["first"])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    args = parse()
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.json"
        texts.write_text(json.dumps(make_texts(args.n)))
        contestants = enter(args, folder, str(texts))
        for each in contestants:
            each.start()
        for turn in range(args.turns):
            for each in contestants if turn % 2 == 0 else contestants[::-1]:
                each.run()
        for each in contestants:
            each.close()
    report(contestants, args.n)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="minilm")
    parser.add_argument("-n", type=int, default=10000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--transformers", metavar="PYTHON")
    parser.add_argument("--llama", metavar="PYTHON")
    return parser.parse_args()


def make_texts(n: int) -> list[str]:
    """Short texts of different lengths, alike in every run."""
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 28))) for _ in range(n)]


def enter(args: argparse.Namespace, folder: str, texts: str) -> list[Contestant]:
    from tahr import hub

    home = hub.resolve(args.model).directory
    assert home is not None, "the model must be a checkpoint"
    base = {"TEXTS": texts, "THREADS": args.threads, "MODEL": str(home), "QUANTIZE": None}
    found = [
        Contestant("tahr f32", TAHR, sys.executable, base),
        Contestant("tahr q8_0", TAHR, sys.executable, {**base, "QUANTIZE": "q8_0"}),
    ]
    if args.transformers:
        found.append(Contestant("sentence-transformers f32", TRANSFORMERS, args.transformers, base))
    for kind in ("F32", "Q8_0") if args.llama else ():
        file = write_gguf(Path(folder) / f"{kind}.gguf", home, kind)
        found.append(Contestant(f"tahr GGUF {kind}", TAHR, sys.executable, {**base, "MODEL": file}))
        found.append(Contestant(f"llama.cpp {kind}", LLAMA, args.llama, {**base, "MODEL": file}))
    return found


def report(contestants: list[Contestant], n: int) -> None:
    """A line per engine: speed, and how far its vectors are from the first's."""
    first = contestants[0]
    print(f"{n} texts; load {os.getloadavg()[0]:.1f}")
    for each in contestants:
        cosine = float((each.vectors * first.vectors).sum(axis=1).min())
        wall, cpu = min(each.walls), min(each.cpus)
        print(
            f"{each.name:<28}{n / wall:>8.0f} texts/s  {n / cpu:>8.0f} texts per CPU second  "
            f"{min(first.walls) / wall:>5.2f}x wall  {min(first.cpus) / cpu:>5.2f}x CPU  cosine {cosine:.6f}"
        )


# ---- the same model as a GGUF ---------------------------------------------------------------------------------


def write_gguf(path: Path, home: Path, kind: str) -> str:
    """The checkpoint with its tokenizer, as llama.cpp's converter writes it."""
    import gguf

    from tahr.weights import open_safetensors

    config = json.loads((home / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    add_tokenizer(writer, home)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, tensor in open_safetensors(home / "model.safetensors").tensors.items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored is None or "pooler" in name:
            continue
        values = tensor.dense()
        packs = kind == "Q8_0" and values.ndim == 2 and "blk." in stored
        wanted = gguf.GGMLQuantizationType.Q8_0 if packs else gguf.GGMLQuantizationType.F32
        writer.add_tensor(stored, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def add_tokenizer(writer: Any, home: Path) -> None:
    """GGUF marks the beginnings of words, the checkpoint what continues them."""
    vocab = json.loads((home / "tokenizer.json").read_text())["model"]["vocab"]
    pieces = sorted(vocab, key=vocab.get)
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    marked = [p if p in special else p.removeprefix("##") if p.startswith("##") else f"▁{p}" for p in pieces]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(marked)
    writer.add_token_types([3 if p in special else 1 for p in pieces])
    writer.add_token_type_count(2)
    for add, name in (
        (writer.add_unk_token_id, "[UNK]"),
        (writer.add_pad_token_id, "[PAD]"),
        (writer.add_sep_token_id, "[SEP]"),
        (writer.add_bos_token_id, "[CLS]"),
        (writer.add_mask_token_id, "[MASK]"),
    ):
        add(vocab[name])


if __name__ == "__main__":
    main()
