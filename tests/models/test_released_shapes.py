"""Models in their released shapes, as sparse files of the released sizes: each opens, and every tensor is used.

The backend keeps nothing, so memory does not matter; values are zeros, so the files take next to no space.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

import test_families
from gguf_maker import Gguf, Stored, Typed, with_header
from model_cases import Config, shapes
from model_files import ARCHITECTURES, gguf_keys
from released_configs import RELEASED
from tahr.backends.api import Weight
from tahr.backends.reference.backend import ReferenceBackend
from tahr.models.loader.load import Loaded, load, open_model
from tahr.models.parts import weights as model_weights
from tahr.weights import FORMATS, HostTensor
from tiers import full_but

Shapes = dict[str, tuple[int, ...]]
RECORDED = Path(__file__).parents[1] / "fixtures" / "models" / "released_shapes.json"
SHARD_BYTES = 5_000_000_000  # as released checkpoints are cut
AT_ONCE = ["llama-3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b", "gemma3-27b"]  # the others in the full tier


class KeepsNothing(ReferenceBackend):
    """Takes matrices without reading them."""

    def weight(self, tensor: HostTensor) -> Weight:
        n_stack, (n_rows, n_cols) = math.prod(tensor.shape[:-2]), tensor.shape[-2:]
        return Weight(tensor.name, tensor.format.name, "none", n_rows, n_cols, tensor.n_bytes, None, n_stack)


@pytest.fixture
def lazily_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts stored one by one are copied into a stack, which would read every byte of the file."""

    def stacked(name: str, parts: list[HostTensor]) -> HostTensor:
        return HostTensor(name, parts[0].format, (len(parts), *parts[0].shape), parts[0].data)

    monkeypatch.setattr(model_weights, "stacked", stacked)


def hole(path: Path, head: bytes, n_bytes: int) -> None:
    """A file of `head` and `n_bytes` zeros that are not stored."""
    path.write_bytes(head)
    try:
        with path.open("r+b") as file:
            file.truncate(len(head) + n_bytes)
    except OSError as error:
        pytest.skip(f"this disk holds no sparse file of {n_bytes} bytes ({error.strerror})")


def shards(tensors: Shapes) -> Iterator[Shapes]:
    """The tensors of a checkpoint, cut where released ones are."""
    shard: Shapes = {}
    n_bytes = 0
    for name, shape in tensors.items():
        if shard and n_bytes + 2 * math.prod(shape) > SHARD_BYTES:
            yield shard
            shard, n_bytes = {}, 0
        shard[name] = shape
        n_bytes += 2 * math.prod(shape)
    yield shard


def write_checkpoint(directory: Path, config: Config, tensors: Shapes) -> Path:
    """config.json, BF16 shards and their index."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    home: dict[str, str] = {}
    for number, shard in enumerate(shards(tensors), start=1):
        header, at = {}, 0
        for name, shape in shard.items():
            end = at + 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
            at = end
        file = f"model-{number:05}.safetensors"
        hole(directory / file, with_header(header, b""), at)
        home |= dict.fromkeys(shard, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": home}))
    return directory


def write_gguf(path: Path, config: Config) -> Path:
    """One file with matrices as Q8_0 and vectors as F32."""
    arch = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]]
    metadata = {"general.architecture": Typed("str", arch)}
    metadata |= {f"{arch}.{key}": value for key, value in gguf_keys(config).items()}
    tensors, at = [], 0
    for name, shape in gguf_shapes(config).items():
        stored_as = FORMATS["Q8_0" if len(shape) > 1 else "F32"]
        tensors.append(Stored(name, shape[::-1], stored_as.ggml_id or 0, b"", at))
        at += -(-stored_as.n_bytes(math.prod(shape)) // 32) * 32
    hole(path, Gguf(metadata, tensors).to_bytes(), at)
    return path


def gguf_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    names = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes(config).items():
        joined = re.sub(r"experts\.\d+\.", "experts.", name)
        stored = names.get_name(joined, try_suffixes=(".weight", ".bias"))
        assert stored is not None
        found[stored] = shape if joined == name else (config["num_experts"], *shape)
    return found


def check(loaded: Loaded, config: Config, n_billion: float, bytes_per_value: float) -> None:
    assert loaded.n_weight_bytes == pytest.approx(n_billion * 1e9 * bytes_per_value, rel=0.02)
    assert not any(line.startswith("Not used") for line in loaded.log)
    assert loaded.config.n_layers == config["num_hidden_layers"] == len(loaded.decoder.layers)
    assert loaded.config.n_vocab == config["vocab_size"]
    assert loaded.config.max_context >= config["max_position_embeddings"]


@pytest.mark.usefixtures("lazily_stacked")
@pytest.mark.parametrize("name", full_but(AT_ONCE, RELEASED))
def test_a_checkpoint_of_the_released_size_loads(name: str, tmp_path: Path) -> None:
    config, n_billion = RELEASED[name]
    source = open_model([], write_checkpoint(tmp_path / name, config, shapes(config)))
    assert source.n_bytes == pytest.approx(n_billion * 2e9, rel=0.02)
    if config["model_type"] != "qwen3_moe":
        check(load(source, KeepsNothing()), config, n_billion, 2)
    else:  # the stand-in for the stacks says how large one expert is
        assert len(load(source, KeepsNothing()).decoder.layers) == config["num_hidden_layers"]


@pytest.mark.parametrize("name", full_but(AT_ONCE, RELEASED))
def test_a_gguf_of_the_released_size_loads(name: str, tmp_path: Path) -> None:
    config, n_billion = RELEASED[name]
    source = open_model([write_gguf(tmp_path / f"{name}.gguf", config)])
    check(load(source, KeepsNothing()), config, n_billion, 34 / 32)


def recorded(name: str, n_layers: int) -> Shapes:
    """The tensors that transformers saves for a released config: of some layers and, in them, of some experts."""
    found: Shapes = {}
    for pattern, (shape, layers, n_experts) in json.loads(RECORDED.read_text())[name].items():
        for layer in [layer for layer in layers if layer < n_layers] if layers else [0]:
            named = pattern.replace("layers.*", f"layers.{layer}")
            names = [named.replace("experts.*", f"experts.{i}") for i in range(n_experts)] or [named]
            found |= dict.fromkeys(names, tuple(shape))
    return found


# Fewer layers than released where some matrices of each are copied when they are loaded.
MORE = [("deepseek-v3", 12), ("glm-4.7-flash", 47), ("granite-4.0-h-tiny", 8)]


@pytest.mark.usefixtures("lazily_stacked")
@pytest.mark.parametrize(("name", "n_layers"), full_but([], MORE))
def test_checkpoints_of_more_families_load(name: str, n_layers: int, tmp_path: Path) -> None:
    """But for Llama 4, whose experts are turned when they are loaded: every byte would be read."""
    config = {key: value for key, value in test_families.RELEASED[name].items() if key != "quantization_config"}
    config |= {"num_hidden_layers": n_layers}
    config |= {"layer_types": config["layer_types"][:n_layers]} if "layer_types" in config else {}
    loaded = load(open_model([], write_checkpoint(tmp_path / name, config, recorded(name, n_layers))), KeepsNothing())
    assert not any(line.startswith("Not used") for line in loaded.log)
    assert len(loaded.decoder.layers) == n_layers
