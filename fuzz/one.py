"""One target under the fuzzer, in this process, until libFuzzer ends it: python fuzz/one.py TARGET SECONDS"""

import sys
from functools import partial
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tahr"]):
    from targets import CORPUS, TARGETS, tried

HERE = Path(__file__).parent
GROWN = HERE.parent / "build/fuzz"  # inputs that reached new code, for the next time
FOUND = HERE / "found"
TIMEOUT_S = 20  # limit on one input
MEMORY_MB = 2048


def main() -> None:
    name, seconds = sys.argv[1:]
    for folder in (GROWN / name, FOUND):
        folder.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-timeout={TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MB}"]
    sizes = [f"-max_len={TARGETS[name].max_bytes}", f"-artifact_prefix={FOUND}/{name}-"]
    folders = [str(GROWN / name), str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *limits, *sizes, *folders], partial(tried, name))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
