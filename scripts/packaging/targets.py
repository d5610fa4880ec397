"""What wheels are built for, and with which compiler."""

from typing import NamedTuple


class Target(NamedTuple):
    """A kind of system."""

    name: str
    processor: str  # as CMake calls it
    tag: str  # of the platform, in a wheel's name
    zig: str  # Zig's name of the system, whose linker and C library stand for it
    gcc: str = ""  # GCC that compiles for it, where there is one: the same code as a build from source
    triplet: str = ""  # in the names of modules
    system: str = "Linux"
    link: tuple[str, ...] = ()


class Abi(NamedTuple):
    """The Pythons that a module serves."""

    python: str  # tag of the interpreter in a wheel's name
    abi: str
    suffix: str  # of the module's name; {triplet} is the target's
    stable: bool


# GCC's own library is linked statically: no old system has a new one. What it asks of a new glibc is in old_glibc.cpp.
GLIBC = "2.28"
TARGETS = (
    Target(
        "manylinux-x86_64",
        "x86_64",
        f"manylinux_{GLIBC.replace('.', '_')}_x86_64",
        f"x86_64-linux-gnu.{GLIBC}",
        gcc="x86_64-linux-gnu-g++",
        triplet="x86_64-linux-gnu",
    ),
    Target(
        "manylinux-aarch64",
        "aarch64",
        f"manylinux_{GLIBC.replace('.', '_')}_aarch64",
        f"aarch64-linux-gnu.{GLIBC}",
        gcc="aarch64-linux-gnu-g++",
        triplet="aarch64-linux-gnu",
    ),
    Target("musllinux-x86_64", "x86_64", "musllinux_1_2_x86_64", "x86_64-linux-musl", triplet="x86_64-linux-musl"),
    Target("musllinux-aarch64", "aarch64", "musllinux_1_2_aarch64", "aarch64-linux-musl", triplet="aarch64-linux-musl"),
    Target(
        "macos-arm64",
        "arm64",
        "macosx_13_0_arm64",
        "aarch64-macos.13.0",
        triplet="darwin",
        system="Darwin",
        link=("-undefined", "dynamic_lookup"),
    ),
)
ABIS = (
    Abi("cp312", "abi3", ".abi3.so", stable=True),
    Abi("cp311", "cp311", ".cpython-311-{triplet}.so", stable=False),
)
MAX_WHEEL_BYTES = 8_000_000
