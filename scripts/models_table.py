"""Writes docs/models.md: every family Tahr runs, from the tables of the code and of the tests.

Run: python scripts/models_table.py   (tests/style/test_docs.py fails when the table is no longer true)
"""

import importlib
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

import gguf  # noqa: E402

import chat_vision_cases  # noqa: E402
import encoder_cases  # noqa: E402
import mmproj_files  # noqa: E402
import model_cases  # noqa: E402
import model_files  # noqa: E402
import speech_cases  # noqa: E402
import vision_cases  # noqa: E402
from tahr.models.family import Family  # noqa: E402
from tahr.models.loader.registry import ARCHITECTURES, FAMILIES, model_type  # noqa: E402

SAID_TO_BE = {"ministral": "llama", "bert": "bert", "roberta": "bert"}  # what the tests do not say of GGUFs
HEAD = """# Models

Made by `scripts/models_table.py` from the code; `tests/style/test_docs.py` fails when it is no longer true.

Every family runs on every backend: `reference` (NumPy), `cpu` (C++) and `cuda` (torch and Triton). A tiny random
model of each family gives the logits of transformers to 1e-4 in f32, from safetensors and, where a column says so,
from GGUF (`tests/models/test_models.py`, `tests/models/test_encoders.py`, `tests/models/test_towers.py`,
`tests/models/test_chat_vision.py`); a recorded plan equals eager ops (`tests/models/test_plan.py`); on a GPU the same
in bf16 (`tests/cuda/test_cuda.py`). What reads images was not run on a GPU; what reads recordings
(`tests/models/test_whisper.py`, to 2e-4) and what speaks (`tests/speech/test_speaking.py`, the codes of the released
code) run on `reference` and `cpu` alone, and are refused by name elsewhere.
Hybrids (layers with a state) are also served batched, chunked, preempted, forked and from snapshots as they run alone
(`tests/models/test_families.py`).
`lines` is about the length of the family's file, divided by the families in it; shared parts (attention, experts,
mixers) are not counted.

| family | `model_type` | GGUF architecture | beside texts | tiny models compared | of them from GGUF | file | lines |
|---|---|---|---|---|---|---|---|
"""
TAIL = """
Half of the families take at most {median:.0f} lines.

Encoders give embeddings and rerank; their GGUFs are those of llama.cpp. What reads images has a page:
[images](images.md).

## What it would take

- **DiffusionGemma** writes 256 tokens at a time by denoising random ones. Its layers are Gemma 4's with experts; what
  its decoding loop would take of the engine is in [decisions](decisions.md).
- **DeepSeek V3.2 and later** choose the keys they attend to by an index of their own, **Kimi Linear** mixes latent
  attention with a delta rule per channel, **Falcon-H1** and **Nemotron-H** have Mamba-2 layers in other arrangements:
  the ops for the last two are there.
"""


def modules() -> Iterator[tuple[Path, Any]]:
    for folder in ("families", "encoders", "towers", "speaking"):
        for path in sorted((ROOT / "tahr" / "models" / folder).rglob("*.py")):
            yield path, importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def homes() -> dict[str, tuple[Path, float]]:
    """By family: its file, and its share of the lines."""
    found: dict[str, tuple[Path, float]] = {}
    for path, module in modules():
        lines = path.read_text(encoding="utf-8").splitlines()
        begun = {line.split(" = ")[0] for line in lines if " = " in line}
        here = {value.name for name, value in vars(module).items() if isinstance(value, Family) and name in begun}
        found |= {name: (path, len(lines) / len(here)) for name in here}
    return found


def cases() -> list[tuple[str, str, bool]]:
    """(case, model_type, whether its GGUF is compared too) of every tiny model."""
    decoders = [(name, config, name not in model_cases.NO_GGUF) for name, config in model_cases.CASES.items()]
    encoders = [(name, config, True) for name, config in encoder_cases.CASES.items()]
    beside = (vision_cases.CASES, chat_vision_cases.CASES, speech_cases.CASES)
    towers = [(name, config, name in mmproj_files.IN_FILES) for found in beside for name, config in found.items()]
    return [(name, model_type(config), has_gguf) for name, config, has_gguf in decoders + encoders + towers]


def beside_texts(types: list[str]) -> str:
    """What families of these types read besides texts, if anything."""
    told = {
        "images, as vectors": vision_cases.CASES,
        "images, in chats": chat_vision_cases.CASES,
        "recordings": speech_cases.CASES,
        "speaks": {"qwen3_tts": {"model_type": "qwen3_tts"}},
    }
    return next((what for what, found in told.items() if any(model_type(c) in types for c in found.values())), "")


def architectures(family: str, types: list[str]) -> list[str]:
    """What the GGUFs of a family say they are; nothing where there are none."""
    if beside_texts(types) and not any(has_gguf for _, kind, has_gguf in cases() if kind in types):
        return []
    told = [
        gguf.MODEL_ARCH_NAMES[model_files.ARCHITECTURES[kind]] for kind in types if kind in model_files.ARCHITECTURES
    ]
    named = [kind for kind, found in ARCHITECTURES.items() if found.name == family]
    return sorted({*told, *named}) or [kind for kind in types if "_" not in kind]


def rows() -> Iterator[str]:
    files = homes()
    for family in dict.fromkeys(family.name for family in FAMILIES.values()):
        types = [kind for kind, found in FAMILIES.items() if found.name == family]
        arches = architectures(family, types)
        tested = [(name, has_gguf) for name, kind, has_gguf in cases() if kind in types]
        path, lines = files[family]
        where = path.relative_to(ROOT)
        counts = f"{len(tested)} | {sum(has_gguf for _, has_gguf in tested)}"
        names = " | ".join(", ".join(f"`{kind}`" for kind in kinds) for kinds in (types, arches))
        yield f"| {family} | {names} | {beside_texts(types)} | {counts} | `{where}` | {round(lines, -1):.0f} |"


def page() -> str:
    median = statistics.median(lines for _, lines in homes().values())
    return HEAD + "\n".join(rows()) + "\n" + TAIL.format(median=median)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
