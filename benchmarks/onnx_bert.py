"""A BERT that is stored as ONNX: turned into a checkpoint, and run by onnxruntime on texts. `real_onnx.py` calls it.

usage: benchmarks/onnx_bert.py MODEL.onnx TOKENIZER.json FOLDER < TEXTS

Needs onnx, onnxruntime and tokenizers, which nothing else here does. FOLDER gets model.safetensors. TEXTS is a JSON
list; what the file's graph makes of each is printed as a JSON object: "stored" as the file says, which rounds
activations to a byte before every product, and "exact" with the same weights and products of floats.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from tokenizers import Tokenizer

BATCH = 50


def main() -> None:
    file, tokenizer, folder = (Path(each) for each in sys.argv[1:])
    texts = json.load(sys.stdin)
    model = onnx.load(str(file))
    write_safetensors(folder / "model.safetensors", checkpoint(model))
    stored = run(file.read_bytes(), tokenizer, texts)
    exact = run(with_floats(model).SerializeToString(), tokenizer, texts)
    print(json.dumps({"stored": stored, "exact": exact}))


def values_of(model: Any) -> dict[str, Any]:
    """The stored arrays; those of bytes also as the floats they stand for, by their names without `_quantized`."""
    found = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    for name in [name for name in found if name.endswith("_quantized")]:
        stem = name.removesuffix("_quantized")
        zero = found[f"{stem}_zero_point"].astype(np.float32)
        found[stem] = (found[name].astype(np.float32) - zero) * found[f"{stem}_scale"]
    return found


def checkpoint(model: Any) -> dict[str, Any]:
    """The weights by their names in a checkpoint: a product's node says which layer it is, and its matrix is turned."""
    values = values_of(model)
    names = (".weight", ".bias")
    found = {name: array for name, array in values.items() if name.endswith(names) and "::" not in name}
    for node in model.graph.node:
        stem = node.input[1].removesuffix("_quantized") if node.op_type == "MatMulInteger" else ""
        if stem in values:
            layer = node.name.rpartition("/")[0].strip("/").replace("/", ".")
            found[f"{layer}.weight"] = values[stem].T
    return with_one_label(found) if "classifier.weight" in found else found


def with_one_label(arrays: dict[str, Any]) -> dict[str, Any]:
    """Of two classes the second against the first: their softmax is a sigmoid of that. Tokens have one type."""
    types = "bert.embeddings.token_type_embeddings.weight"
    heads = {name: arrays[name][1:] - arrays[name][:1] for name in ("classifier.weight", "classifier.bias")}
    return {**arrays, **heads, types: arrays[types][:1]}


def write_safetensors(path: Path, arrays: dict[str, Any]) -> None:
    head, parts, at = {}, [], 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array, np.float32).tobytes()
        head[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def with_floats(model: Any) -> Any:
    """The graph with products of floats where it rounds activations to bytes: four nodes become one."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    values, readers = values_of(model), {each: node for node in changed.graph.node for each in node.input}
    origin = {node.output[0]: node.input[0] for node in changed.graph.node if node.op_type == "DynamicQuantizeLinear"}
    nodes, gone = [], set()
    for node in changed.graph.node:
        if node.op_type != "MatMulInteger":
            nodes.append(node)
            continue
        cast = readers[node.output[0]]
        scale = readers[cast.output[0]]
        gone |= {cast.name, scale.name}
        first, second = (origin.get(name, name.removesuffix("_quantized")) for name in node.input[:2])
        if second in values:
            changed.graph.initializer.append(
                numpy_helper.from_array(values[second].astype(np.float32), f"{second}_float")
            )
            second = f"{second}_float"
        nodes.append(helper.make_node("MatMul", [first, second], list(scale.output), name=node.name))
    kept = [node for node in nodes if node.name not in gone]
    del changed.graph.node[:]
    changed.graph.node.extend(kept)
    return changed


def run(model: bytes, tokenizer: Path, texts: list[str]) -> list[Any]:
    """The last output for each text; of states, those of the first token."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # weights that are no longer read are worth a warning each
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}
    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.enable_padding()
    found: list[Any] = []
    for first in range(0, len(texts), BATCH):
        encoded = encoder.encode_batch(texts[first : first + BATCH])
        ids = np.array([each.ids for each in encoded])
        mask = np.array([each.attention_mask for each in encoded])
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        out = session.run(None, {name: given[name] for name in wanted})[0]
        found += (out[:, 0] if out.ndim == 3 else out).tolist()
    return found


if __name__ == "__main__":
    main()
