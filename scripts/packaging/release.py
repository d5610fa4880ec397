"""What of a release a script can do: checks, the gate, wheels, source package, archives, SBOM, formula, checksums.

usage: make release VERSION=1.2.3 URL=https://FORGE/OWNER/tahr       everything, into dist/1.2.3
       make release VERSION=1.2.3 URL=... ARGS=--dry-run             says what is in the way and what would run
Nothing is tagged, pushed or published: docs/releasing.md has what is left to a person.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from formula import digest_of, formula
from release_checks import failed_gate, git, problems

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-wheels/bin/python"  # made by `make wheels`
SDIST = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
SUMS = "SHA256SUMS"


def main() -> None:
    asked = read_arguments()
    out = Path(asked.out or ROOT / "dist" / asked.version).absolute()
    gates = {backend: failed_gate(ROOT, asked.version, backend) for backend in asked.backends}
    commands = [gate(backend) for backend, problem in gates.items() if problem] + builds(out)
    found = problems(ROOT, asked.version)
    print("\n".join([*found, *(f"To be run: {problem}." for problem in gates.values() if problem)]))
    if asked.dry_run:
        print("\n".join(f"would run: {' '.join(command)}" for command in commands))
    if found or asked.dry_run:
        sys.exit(bool(found))
    build(commands, asked.version, asked.backends)
    finish(out, asked.version, asked.url)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--url", required=True, help="address of the repository that the release is published in")
    parser.add_argument("--out", help="folder of what is made (dist/VERSION)")
    parser.add_argument("--backends", nargs="+", default=["cpu"], help="backends that must pass the gate")
    parser.add_argument("--dry-run", action="store_true", help="check, and say what would run")
    given = parser.parse_args()
    if not given.url.startswith("https://"):
        parser.error("URL is where the archives will be found, such as https://FORGE/OWNER/tahr")
    return given


def gate(backend: str) -> list[str]:
    return ["make", "gate", f"BACKEND={backend}"]


def builds(out: Path) -> list[list[str]]:
    return [
        ["make", "wheels", f"ARGS=--out {out}"],
        ["make", "standalone", f"ARGS=--out {out / 'standalone'}"],
        [str(PYTHON), "-c", SDIST, str(out)],
    ]


def build(commands: list[list[str]], version: str, backends: list[str]) -> None:
    """Run the commands, with a time of the commit in place of the clock's, and hold the gate to what it kept."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", git(ROOT, "log", "-1", "--format=%ct"))
    for command in commands:
        print(f"running: {' '.join(command)}", flush=True)
        subprocess.run(command, cwd=ROOT, check=True)
    for backend in backends:
        if problem := failed_gate(ROOT, version, backend):
            sys.exit(f"No release: {problem}.")


def finish(out: Path, version: str, url: str) -> None:
    """Names, SBOM, formula and checksums, of what was built."""
    archive = named_archive(out, version)
    (out / f"tahr-{version}.cdx.json").write_text(bill_of_materials(out))
    write_formula(archive, version, url)
    write_sums(out)
    print(f"Made in {out}; what is left to do is in docs/releasing.md.")


def named_archive(out: Path, version: str) -> Path:
    """The standalone archive under a name that says version and system."""
    made = out / "standalone" / "tahr-standalone.tar.gz"
    named = out / f"tahr-{version}-{platform.system().lower()}-{platform.machine()}.tar.gz"
    shutil.move(made, named)
    shutil.rmtree(made.parent)
    return named


def bill_of_materials(out: Path) -> str:
    """What lies in the wheels for x86-64: they all have the same."""
    found = set()
    for wheel in out.glob("*manylinux*x86_64.whl"):
        with zipfile.ZipFile(wheel) as archive:
            found |= {archive.read(name).decode() for name in archive.namelist() if name.endswith("tahr.cdx.json")}
    if len(found) != 1:
        raise SystemExit(f"The wheels for x86-64 in {out} have {len(found)} bills of materials: build them again.")
    return found.pop()


def write_formula(archive: Path, version: str, url: str) -> None:
    file = archive.parent / "Formula" / "tahr.rb"
    file.parent.mkdir(exist_ok=True)
    file.write_text(formula(archive, version, url))


def write_sums(out: Path) -> None:
    """As `sha256sum --check` reads them."""
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.name != SUMS)
    lines = [f"{digest_of(path)}  {path.relative_to(out).as_posix()}\n" for path in files]
    (out / SUMS).write_text("".join(lines))


if __name__ == "__main__":
    main()
