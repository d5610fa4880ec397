"""Compile the kernels of the Vulkan backend into kernels.zip, every variant of each.

usage: scripts/vulkan_kernels.py GLSLC [--check]

GLSLC is the compiler that scripts/vulkan_tools.sh fetches: another release makes other bytes. --check compiles and
compares with the archive in place of writing it.
"""

import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1] / "tahr" / "backends" / "vulkan" / "kernels"
ARCHIVE = KERNELS / "kernels.zip"
WORDS = ["--target-env=vulkan1.3", "-std=460", "-O", "-Werror", "-fshader-stage=compute"]
EPOCH = (1980, 1, 1, 0, 0, 0)

# The numbers are those of weights.glsl, kv.glsl and repack.comp.
KINDS = {"f32": 0, "f16": 1, "bf16": 2, "q8": 3, "q4": 4, "k4": 5, "w8": 6, "w8_offsets": 7}
# By the size of the device's matrices: rows and columns of tiles, and those of a subgroup. Those of products.py.
TILES = {
    "16x16x16": [(128, 128, 64, 32), (64, 64, 32, 32), (16, 64, 16, 16)],
    "8x16x16": [(64, 64, 32, 32)],
    "8x8x16": [(64, 64, 32, 32)],
    "8x8x8": [(16, 32, 8, 16)],
}
KV_TYPES = {"f32": 0, "f16": 1, "bf16": 2}
FORMATS = {
    "Q8_0": (80, "q8"), "Q4_0": (40, "q4"), "Q4_1": (41, "q4"), "Q5_0": (50, "w8"), "Q5_1": (51, "w8_offsets"),
    "Q2_K": (2, "w8_offsets"), "Q3_K": (3, "w8"), "Q4_K": (4, "k4"), "Q5_K": (5, "w8_offsets"), "Q6_K": (6, "w8"),
    "IQ4_NL": (20, "q8"), "IQ4_XS": (23, "w8"), "MXFP4": (39, "w8"),
}  # fmt: skip


def variants() -> dict[str, tuple[str, dict[str, int]]]:
    """Source and definitions of every kernel, by its name in the archive."""
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for plain in ("map", "norm", "quantise", "merge", "argmax", "halve"):
        found[plain] = plain, {}
    for source in ("linear", "embed", "tile"):
        found |= {f"{source}_{name}": (source, {"KIND": number}) for name, number in KINDS.items()}
    for source in ("attend", "rope_cache"):
        found |= {f"{source}_{name}": (source, {"KV": number}) for name, number in KV_TYPES.items()}
    for size, tiles in TILES.items():
        defined = dict(zip(("TM", "TN", "TK"), map(int, size.split("x")), strict=True))
        for kv in ("f16", "bf16"):
            found[f"attend_tile_{kv}_{size}"] = "attend_tile", defined | {"KV": KV_TYPES[kv]}
        for tile in tiles:
            own = defined | dict(zip(("BM", "BN", "WM", "WN"), tile, strict=True))
            for name, number in KINDS.items():
                if name != "f32":  # f16 would lose what f32 has
                    found[f"matrix_{name}_{size}_{tile[0]}x{tile[1]}"] = "matrix", own | {"KIND": number}
    for name, (number, kind) in FORMATS.items():
        found[f"repack_{name}"] = "repack", {"FORMAT": number, "KIND": KINDS[kind]}
    return found


def compiled(glslc: str, source: str, definitions: dict[str, int]) -> bytes:
    """The SPIR-V of a variant."""
    with tempfile.NamedTemporaryFile(suffix=".spv") as out:
        defined = [f"-D{name}={value}" for name, value in definitions.items()]
        command = [glslc, *WORDS, *defined, str(KERNELS / f"{source}.comp"), "-o", out.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{source}.comp with {definitions}:\n{(done.stdout + done.stderr)[-4000:]}")
        return Path(out.name).read_bytes()


def compile_all(glslc: str) -> dict[str, bytes]:
    """The SPIR-V of every variant, by its name."""
    wanted = variants()
    with ThreadPoolExecutor(2) as pool:
        codes = pool.map(lambda each: compiled(glslc, *each), wanted.values())
        return dict(zip(wanted, codes, strict=True))


def archived() -> dict[str, bytes]:
    """What the archive in the tree holds."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(codes: dict[str, bytes]) -> None:
    """Make the archive anew."""
    with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, code in sorted(codes.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), code, zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    """Write the archive, or compare it."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    codes = compile_all(sys.argv[1])
    if "--check" not in sys.argv:
        write(codes)
        print(f"{len(codes)} kernels, {sum(map(len, codes.values()))} bytes, {ARCHIVE.stat().st_size} in the archive")
    elif other := sorted(name for name in {*codes, *archived()} if codes.get(name) != archived().get(name)):
        raise SystemExit(f"The archive differs from its sources in: {', '.join(other)}. Run this without --check.")


if __name__ == "__main__":
    main()
