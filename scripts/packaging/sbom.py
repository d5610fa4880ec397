"""What a wheel is made of, as CycloneDX: it lies in the wheel itself (PEP 770)."""

import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = re.compile(r"\d+\.\d+\.\d+")


def components(gcc_version: str) -> list[dict[str, object]]:
    """What is linked or copied into a wheel. Packages that pip installs beside it are dependencies, listed apart."""
    katex = (ROOT / "tahr/server/page/third_party/katex/README.md").read_text()
    found = [
        ("nanobind", version("nanobind"), "BSD-3-Clause", "library"),
        ("robin-map", "of nanobind " + version("nanobind"), "MIT", "library"),
        ("katex", VERSION.findall(katex)[0], "MIT", "library"),
    ]
    if gcc_version:
        found.append(("libstdc++", gcc_version, "GPL-3.0-or-later WITH GCC-exception-3.1", "library"))
    else:
        found.append(("libc++", "of Zig " + version("ziglang"), "Apache-2.0 WITH LLVM-exception", "library"))
    return [
        {"type": kind, "name": name, "version": number, "licenses": [{"expression": licence}]}
        for name, number, licence, kind in found
    ]


def sbom(tahr_version: str, gcc_version: str) -> str:
    """The document, without times and random numbers, so that two builds give the same bytes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [{"type": "library", "name": name, "scope": "required"} for name in project["dependencies"]]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "tahr",
                "version": tahr_version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "purl": f"pkg:pypi/tahr@{tahr_version}",
            }
        },
        "components": components(gcc_version) + wanted,
    }
    return json.dumps(document, indent=1) + "\n"
