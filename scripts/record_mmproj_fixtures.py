"""Records what llama.cpp's converter makes of the tiny models that chat about images: run by hand when a case is added.

Usage: python scripts/record_mmproj_fixtures.py PATH_OF_LLAMA_CPP [case ...]   (needs torch and transformers)
"""

import json
import subprocess
import sys
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

import gguf

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from chat_vision_cases import CASES  # noqa: E402
from chat_vision_files import write_chat_vision  # noqa: E402
from mmproj_files import RECORDED  # noqa: E402


def recorded(converter: Path, case: str) -> dict[str, Any]:
    """Metadata of the file, and the shape and a digest of each tensor."""
    with tempfile.TemporaryDirectory() as folder:
        write_chat_vision(Path(folder), case)
        out = Path(folder) / "mmproj.gguf"
        command = [sys.executable, str(converter), folder, "--mmproj", "--outtype", "f32", "--outfile", str(out)]
        subprocess.run(command, check=True, capture_output=True)
        reader = gguf.GGUFReader(out)
        metadata = {key: field.contents() for key, field in reader.fields.items() if key.startswith("clip.")}
        tensors = {
            each.name: [each.shape.tolist(), blake2b(each.data.tobytes(), digest_size=8).hexdigest()]
            for each in reader.tensors
        }
    return {"metadata": metadata, "tensors": dict(sorted(tensors.items()))}


def main(place: str, cases: list[str]) -> None:
    found = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    for case in cases:
        found[case] = recorded(Path(place) / "convert_hf_to_gguf.py", case)
    lines = [f"{json.dumps(case)}: {json.dumps(found[case])}" for case in CASES if case in found]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(CASES))
