"""Headers of the Pythons that modules are built for. Nothing of those Pythons runs."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

DEBIAN_PACKAGE = "libpython3.13-dev"
DEBIAN_RELEASE = "trixie"
MIRROR = re.compile(r"https?://\S+/debian/?(?=\s|$)")
TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def stable_headers(folder: Path) -> list[Path]:
    """Headers with the stable interface of 3.12: this Python's, or those of a Debian package."""
    if sys.version_info >= (3, 12):
        return [Path(sysconfig.get_path("include"))]
    found = folder / "usr/include"
    if not found.exists():
        fetch(folder)
    return [found / "python3.13", found]


def headers_of_311() -> list[Path]:
    """Headers of Python 3.11, which only that Python has."""
    if sys.version_info[:2] != (3, 11):
        sys.exit("A wheel for Python 3.11 is built by Python 3.11: run this with it, or ask for --abi abi3 alone.")
    return [Path(sysconfig.get_path("include"))]


def fetch(folder: Path) -> None:
    """Unpack Debian's package into a folder, with lists and caches of its own: the system does not change."""
    sources = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    mirrors = [found for file in sources if file.is_file() for found in MIRROR.findall(file.read_text())]
    if not mirrors:
        sys.exit("Headers of Python 3.12 or newer are missing: run this with such a Python, or on Debian.")
    for part in ("apt/lists/partial", "apt/cache/archives/partial", "debs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    sources_list = folder / "apt/sources"
    sources_list.write_text(f"deb [signed-by={KEYS}] {mirrors[0]} {DEBIAN_RELEASE} main\n")
    options = {
        "Dir::Etc::sourcelist": sources_list,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "apt/lists",
        "Dir::Cache": folder / "apt/cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", f"{DEBIAN_PACKAGE}/{DEBIAN_RELEASE}"], check=True, cwd=folder / "debs")
    for package in (folder / "debs").glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    alike(folder / "usr/include")


def alike(include: Path) -> None:
    """Let other 64-bit processors and C libraries find the settings of this one: numbers have the same sizes there."""
    ours = next(include.glob("*-linux-gnu"))
    for triplet in TRIPLETS:
        if not (include / triplet).exists():
            (include / triplet).symlink_to(ours.name)
