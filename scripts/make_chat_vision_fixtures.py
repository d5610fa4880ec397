"""Computes what the tests of chats about images expect, with transformers: run by hand when a case is added.

Usage: python scripts/make_chat_vision_fixtures.py [case ...]
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from chat_vision_cases import (  # noqa: E402
    BANNED,
    CASES,
    FIXTURES,
    IMAGE,
    IN_LINES,
    IN_TILES,
    N_GREEDY,
    PROMPTS,
    QWEN,
    SHAPES,
    SIZES,
    WITHOUT_MARKS,
    grids,
    make_weights,
    n_tiles,
    pixels,
    tokens,
)


def write(folder: str, case: str, weights: dict[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    (Path(folder) / "config.json").write_text(json.dumps(CASES[case]))
    save_file(weights, Path(folder) / "model.safetensors")


def saved_shapes(case: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint that transformers saves for the case's config."""
    from safetensors.numpy import load_file
    from transformers import AutoConfig, AutoModelForImageTextToText

    with tempfile.TemporaryDirectory() as folder:
        write(folder, case, {})
        AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
        return {released_name(case, name): tensor.shape for name, tensor in sorted(tensors.items())}


def released_name(case: str, name: str) -> str:
    """The name in files that were released, where newer versions save another."""
    return name.replace("vision_tower.", "vision_tower.vision_model.") if case == "gemma3" else name


def loaded(case: str) -> Any:
    from transformers import AutoModelForImageTextToText

    with tempfile.TemporaryDirectory() as folder:
        write(folder, case, make_weights(case))
        model, info = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=precision(case), attn_implementation="eager", output_loading_info=True
        )
    assert not any(info.values()), info
    return model.eval()


def precision(case: str) -> Any:
    """States of recurrent layers gather rounding: those of f32 are off by more than a test allows."""
    import torch

    return torch.float64 if case == "qwen3_5" else torch.float32


def patches(image: np.ndarray, case: str) -> np.ndarray:
    """Rows of pixels, square by square, each pixel twice: once for either frame."""
    vision = CASES[case]["vision_config"]
    p, m = vision["patch_size"], vision["spatial_merge_size"]
    high, wide = image.shape[1] // (p * m), image.shape[2] // (p * m)
    grid = image.reshape(3, high, m, p, wide, m, p).transpose(1, 4, 2, 5, 0, 3, 6)
    twice = np.repeat(grid[:, :, :, :, :, None], vision["temporal_patch_size"], axis=5)
    return np.ascontiguousarray(twice).reshape(high * wide * m * m, -1)


def features(model: Any, case: str) -> dict[str, np.ndarray]:
    """What the tower makes of each image, with what goes to later layers beside it."""
    import torch

    found = {}
    for i, (image, grid) in enumerate(zip(pixels(case), grids(case), strict=True)):
        if case not in QWEN:
            inputs = of_tiles(case, [i]) if case == "llava_next" else of_whole_images(case, [image])
            made = model.model.get_image_features(**inputs).pooler_output
            found[f"image_{i}"] = torch.cat(list(made)).numpy()
            continue
        made = model.model.visual(torch.tensor(patches(image, case)).to(precision(case)), torch.tensor([[1, *grid]]))
        parts = [made.pooler_output, *(getattr(made, "deepstack_features", None) or [])]
        found[f"image_{i}"] = torch.cat(parts, dim=1).float().numpy()
    return found


def of_whole_images(case: str, images: list[np.ndarray]) -> dict[str, Any]:
    """What a model reads that takes images, not patches; or the tiles of all images of a prompt."""
    import torch

    if case in IN_LINES:
        sizes = [image.shape[1:] for image in images]
        most = np.max(sizes, axis=0)
        padded = [np.pad(i, [(0, 0), (0, most[0] - i.shape[1]), (0, most[1] - i.shape[2])]) for i in images]
        return {"pixel_values": torch.tensor(np.stack(padded)), "image_sizes": torch.tensor(sizes)}
    if case not in (*IN_TILES, *WITHOUT_MARKS):
        return {"pixel_values": torch.tensor(np.stack(images))}
    tiles = [np.split(image, image.shape[1] // image.shape[2], axis=1) for image in images]
    sized = CASES[case]["vision_config"]["image_size"]
    beside = sized - tiles[0][0].shape[2]  # pixels that are no whole patch
    found = np.pad(np.stack([tile for each in tiles for tile in each]), [(0, 0), (0, 0), (0, beside), (0, beside)])
    return {"pixel_values": torch.tensor(found if case in WITHOUT_MARKS else found[None])}


def of_tiles(case: str, images: list[int]) -> dict[str, Any]:
    """Images whose tiles stand line by line: with nothing behind those that have fewer."""
    import torch

    tiles = [np.stack(np.split(pixels(case)[i], n_tiles(case, i), axis=1)) for i in images]
    n_most = max(map(len, tiles))
    padded = [np.pad(each, [(0, n_most - len(each)), (0, 0), (0, 0), (0, 0)]) for each in tiles]
    return {
        "pixel_values": torch.tensor(np.stack(padded)),
        "image_sizes": torch.tensor([SIZES[i] for i in images]),
    }


def of_patches(case: str, images: list[int]) -> dict[str, Any]:
    import torch

    rows = np.concatenate([patches(pixels(case)[i], case) for i in images])
    return {
        "pixel_values": torch.tensor(rows).to(precision(case)),
        "image_grid_thw": torch.tensor([[1, *grids(case)[i]] for i in images]),
    }


def logits(model: Any, case: str, name: str, more: list[int]) -> np.ndarray:
    import torch

    ids, images = tokens(case, name)
    ids = ids + more
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    if case == "gemma3":
        inputs["token_type_ids"] = torch.tensor([[int(token == IMAGE) for token in ids]])
    if case in QWEN:
        inputs["mm_token_type_ids"] = torch.tensor([[int(token == IMAGE) for token in ids]])
    if images and case in QWEN:
        inputs |= of_patches(case, images)
    elif images and case == "llava_next":
        inputs |= of_tiles(case, images)
    elif images:
        inputs |= of_whole_images(case, [pixels(case)[i] for i in images])
    return model(**inputs).logits[0].float().numpy()


def greedy(model: Any, case: str, name: str) -> np.ndarray:
    """The likeliest tokens one after the other, each time from the beginning."""
    made: list[int] = []
    for _ in range(N_GREEDY):
        last = logits(model, case, name, made)[-1]
        last[list(BANNED)] = -np.inf
        made.append(int(last.argmax()))
    return np.array(made)


def expected(case: str) -> dict[str, np.ndarray]:
    import torch

    model = loaded(case)
    with torch.no_grad():
        found = features(model, case)
        found |= {f"logits_{name}": logits(model, case, name, []) for name in PROMPTS}
        found |= {f"greedy_{name}": greedy(model, case, name) for name in PROMPTS}
    return found


def main(cases: list[str]) -> None:
    FIXTURES.mkdir(parents=True, exist_ok=True)
    found = json.loads(SHAPES.read_text()) if SHAPES.is_file() else {}
    found |= {case: saved_shapes(case) for case in cases}
    lines = [f"{json.dumps(case)}: {json.dumps(found[case])}" for case in CASES if case in found]
    SHAPES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for case in cases:
        np.savez_compressed(FIXTURES / f"{case}.npz", **expected(case))
        print(case, (FIXTURES / f"{case}.npz").stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
