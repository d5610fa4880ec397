"""Wheels for systems and Pythons that this machine is not. See `make wheels`.

The files of a wheel are those of a pure one, whatever the target; the module is compiled by GCC where a cross compiler
is installed, so that it is the code that a build from source gives, and linked by Zig against the C library of an old
system; where there is no such GCC (musl, macOS) Zig compiles too. Nothing of a wheel depends on the time or the folder.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

from check import refuse_missing_symbols, refuse_size
from headers import headers_of_311, stable_headers
from sbom import sbom
from targets import ABIS, TARGETS, Abi, Target

ROOT = Path(__file__).parents[2]
MODULES = ("_native", "_vulkan")
# Zig takes names of processors where others take those of architectures.
WRAPPER = """#!/bin/sh
for word; do
    shift
    case $word in -march=armv8.2-a+*) word=-mcpu=generic+v8_2a+$(echo "${{word#*+}}" | sed s/fp16/fullfp16/) ;; esac
    set -- "$@" "$word"
done
exec {zig} "$@"
"""


def main() -> None:
    asked = read_arguments()
    work = Path(asked.work).absolute()
    out = Path(asked.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", output("git", "log", "-1", "--format=%ct"))
    pure = pure_wheel(work)
    for target in TARGETS:
        if target.name not in asked.targets:
            continue
        for abi in ABIS:
            if abi.abi in asked.abi:
                wheel = build(target, abi, pure, work, out)
                digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
                print(f"{wheel.stat().st_size / 1e6:.2f} MB  {digest[:16]}  {wheel.name}", flush=True)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="dist", help="folder of the wheels")
    parser.add_argument("--work", default="build/wheels", help="folder of what is made on the way")
    names = [target.name for target in TARGETS]
    parser.add_argument("--targets", nargs="+", choices=names, default=names[:4], help="kinds of systems")
    abis = [abi.abi for abi in ABIS]
    parser.add_argument("--abi", nargs="+", choices=abis, default=abis, help="abi3: Python 3.12 and newer")
    return parser.parse_args()


def build(target: Target, abi: Abi, pure: Path, work: Path, out: Path) -> Path:
    """The wheel of a target and an interface."""
    modules = compiled(target, abi, work)
    if target.system == "Linux":
        for module in modules:
            refuse_missing_symbols(module)
    folder = work / f"{target.name}-{abi.abi}-wheel"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(pure) as archive:
        archive.extractall(folder)
    for module in modules:
        shutil.copy2(module, folder / "tahr" / module.name)
    info = next(folder.glob("*.dist-info"))
    version = info.name.split("-")[1].removesuffix(".dist")
    (info / "sboms").mkdir()
    (info / "sboms/tahr.cdx.json").write_text(sbom(version.removesuffix(".dist-info"), gcc_version(target)))
    write_tags(info / "WHEEL", f"{abi.python}-{abi.abi}-{target.tag}")
    return pack(folder, out)


def pure_wheel(work: Path) -> Path:
    """A wheel without a module."""
    folder = work / "pure"
    shutil.rmtree(folder, ignore_errors=True)
    options = ("-C", "wheel.cmake=false", "-C", "wheel.py-api=py3")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *options, "-w", str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


def compiled(target: Target, abi: Abi, work: Path) -> list[Path]:
    """The modules, stripped. The kernels of a target are compiled once for all interfaces."""
    folder = work / target.name
    suffix = abi.suffix.format(triplet=target.triplet)
    headers = stable_headers(work / "headers") if abi.stable else headers_of_311()
    spec = find_spec("nanobind")
    assert spec and spec.origin, "the environment of `make wheels` has nanobind"
    linker = zig_wrapper(target, work)
    compiler = target.gcc or str(linker)
    settings = {
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": target.processor,
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_CXX_FLAGS": f"-ffile-prefix-map={ROOT}=. -ffile-prefix-map={Path(spec.origin).parent}=nanobind",
        "TAHR_LINKER": linker if target.gcc else "",
        "TAHR_MODULE_LINK": ";".join([*static_libraries(target), *target.link, "-s"]),
        "TAHR_MODULE_SUFFIX": suffix,
        "TAHR_NANOBIND": Path(spec.origin).parent,
        "TAHR_OLD_GLIBC": "ON" if target.gcc else "OFF",
        "TAHR_PYTHON_HEADERS": ";".join(map(str, headers)),
        "TAHR_STABLE_ABI": "ON" if abi.stable else "OFF",
    }
    if launcher := shutil.which("ccache"):
        settings["CMAKE_CXX_COMPILER_LAUNCHER"] = launcher
    run(
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(folder),
        "-G",
        "Ninja",
        *(f"-D{name}={value}" for name, value in settings.items()),
    )
    run("ninja", "-C", str(folder), *MODULES)
    return [folder / f"{name}{suffix}" for name in MODULES]


def zig_wrapper(target: Target, work: Path) -> Path:
    """A program that compiles and links for a target, as CMake wants it."""
    path = work / f"zig-{target.name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    zig = f"{shlex.quote(sys.executable)} -m ziglang c++ -target {target.zig}"
    path.write_text(WRAPPER.format(zig=zig))
    path.chmod(0o755)
    return path


def static_libraries(target: Target) -> list[str]:
    """GCC's own C++ library, in place of Zig's. Its unwinder is the system's: only that finds all modules' frames."""
    if not target.gcc:
        return []
    found = [output(target.gcc, f"-print-file-name={name}") for name in ("libstdc++.a", "libgcc.a")]
    return ["-nostdlib++", *found, output(target.gcc, "-print-file-name=libgcc_s.so.1")]


def gcc_version(target: Target) -> str:
    return output(target.gcc, "-dumpfullversion") if target.gcc else ""


def write_tags(path: Path, tag: str) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    kept = [line for line in lines if line]
    path.write_text("\n".join([*kept, "Root-Is-Purelib: false", f"Tag: {tag}"]) + "\n")


def pack(folder: Path, out: Path) -> Path:
    """A wheel of a folder's files, with their digests."""
    said = output(sys.executable, "-m", "wheel", "pack", "--dest-dir", str(out), str(folder))
    wheel = out / said.split("as ")[-1].split("...")[0].strip().split("/")[-1]
    refuse_size(wheel)
    return wheel


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


if __name__ == "__main__":
    main()
