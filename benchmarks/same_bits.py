"""Whether 64 fixed requests still give the very bits that are on record: texts, tokens and log-probabilities.

usage: benchmarks/same_bits.py check [RECORD] [--threads 2]       what differs, if anything; exit code 1 then
       benchmarks/same_bits.py record [RECORD] [--isa scalar]     write the record anew

RECORD is `tests/fixtures/same_bits.json` unless given: what the scalar kernels give on x86-64. Nothing there contracts
a multiply and an add, and attention's and activations' `exp` is our own over vectors; but rotations, routers,
recurrences, the joining of attention's parts and log-probabilities call the C library (`sincosf`, `expf`, `logf`,
`log1pf`, `log`), and that of another architecture or maker may round otherwise. A record of other kernels
(`record best.json --isa avx2`) is for such processors. Models are made from the tests' fixtures; nothing is downloaded.
What depends on the moment is not recorded: times, and how requests fell into steps.
"""

import argparse
import base64
import json
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from same_bits_models import write_all
from same_bits_requests import GROUPS, N_REQUESTS, TINY, Group
from tahr import LLM, Completion

RECORD = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "same_bits.json"
ISA_VARIABLE = "TAHR_CPU_ISA"
Entry = dict[str, Any]


def run(group: Group, folder: Path, n_threads: int) -> Iterator[tuple[str, Entry]]:
    """What each request of a group gives, by its name."""
    settings = {name: filled(value, folder) for name, value in {**TINY, **group.settings}.items()}
    with LLM(folder / f"{group.model}.gguf", **{**settings, "n_threads": n_threads}) as llm:
        if "spec_tokens" in settings:
            always_draft(llm)
        prompts = [each.prompt for each in group.requests]
        params = [each.params for each in group.requests]
        if group.together:
            done = llm.generate(prompts, params, progress=False)
        else:
            done = [llm.generate(*each, progress=False) for each in zip(prompts, params, strict=True)]
        if group.counter and not getattr(llm.stats(), group.counter):
            sys.exit(f"{group.name}: {group.counter} is 0, so these requests do not show what they are for.")
    for i, completion in enumerate(done):
        yield f"{group.name} {i}", entry(completion, counts_cached=not group.together)


def always_draft(llm: LLM) -> None:
    """Drafts whether they pay or not, which depends on the time steps take. The one reach inside: nothing says it."""
    assert llm.engine.speculator.adapts
    llm.engine.speculator.adapts = False


def filled(value: Any, folder: Path) -> Any:
    """A setting, with the folder of the models in its paths."""
    if isinstance(value, tuple):
        return tuple(filled(each, folder) for each in value)
    return value.format(folder=folder) if isinstance(value, str) else value


def entry(done: Completion, counts_cached: bool) -> Entry:
    """A completion as JSON, numbers to the last bit."""
    found: Entry = {"text": done.text, "tokens": done.token_ids, "end": done.finish_reason, "stop": done.matched_stop}
    for name in ("logprobs", "prompt_logprobs"):
        if listed := getattr(done, name):
            found[name] = packed(listed)
    if counts_cached:
        found["cached"] = done.n_cached_tokens
    if done.others:
        found["others"] = [entry(other, counts_cached) for other in done.others]
    return found


def packed(listed: Any) -> Entry:
    """Tokens and their log-probabilities in a row, each position's own and then the likeliest."""
    pairs = [pair for each in listed for pair in ((each.token, each.logprob), *each.top_logprobs)]
    values = struct.pack(f"<{len(pairs)}d", *(value for _, value in pairs))
    return {"ids": [token for token, _ in pairs], "values": base64.b64encode(values).decode()}


def unpacked(values: str) -> list[str]:
    """The numbers in hexadecimal, which loses nothing."""
    data = base64.b64decode(values)
    return [value.hex() for value in struct.unpack(f"<{len(data) // 8}d", data)]


def run_all(isa: str, n_threads: int) -> dict[str, Entry]:
    os.environ[ISA_VARIABLE] = isa
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_all(folder)
        return dict(each for group in GROUPS for each in run(group, folder, n_threads))


def environment() -> dict[str, str]:
    """What may change bits although our code does not."""
    return {"machine": platform.machine(), "libc": " ".join(platform.libc_ver()), "numpy": np.__version__}


def record(path: Path, isa: str, n_threads: int) -> None:
    found = run_all(isa, n_threads)
    assert len(found) == N_REQUESTS
    head = json.dumps({"isa": isa, "made_on": environment()})
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    path.write_text(head.removesuffix("}") + ', "requests": {\n' + lines + "\n}}\n")
    print(f"{N_REQUESTS} requests with the {isa} kernels are on record in {path}.")


def differences(at: str, want: Any, got: Any) -> Iterator[str]:
    """The first place of each part of an entry where it is not what is on record."""
    if isinstance(want, dict) and isinstance(got, dict):
        for key in sorted({*want, *got}):
            parts = [each.get(key) for each in (want, got)]
            if key == "values" and None not in parts:
                parts = list(map(unpacked, parts))
            yield from differences(f"{at}: {key}", *parts)
    elif isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        unlike = (i for i, pair in enumerate(zip(want, got, strict=True)) if pair[0] != pair[1])
        for i in islice(unlike, 1):
            yield from differences(f"{at}[{i}]", want[i], got[i])
    elif want != got:
        yield f"{at} is {got!r}, not {want!r}"


def check(path: Path, n_threads: int) -> int:
    on_record = json.loads(path.read_text())
    want = on_record["requests"]
    got = run_all(on_record["isa"], n_threads)
    found = {name: list(differences(name, want.get(name), got.get(name))) for name in {**want, **got}}
    wrong = [each for each in found.values() if each]
    n_wrong = len(wrong)
    for each in wrong:
        print(*each, sep="\n")
    print(f"{n_wrong} of {len(found)} requests differ from the record ({on_record['isa']} kernels).")
    if n_wrong and environment() != on_record["made_on"]:
        print(f"It was made on {on_record['made_on']}; this is {environment()}.")
    return 1 if n_wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "record"))
    parser.add_argument("record", type=Path, nargs="?", default=RECORD)
    parser.add_argument("--isa", default="scalar", help="kernels of a new record")
    parser.add_argument("--threads", type=int, default=TINY["n_threads"])
    args = parser.parse_args()
    if args.what == "check":
        return check(args.record, args.threads)
    record(args.record, args.isa, args.threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
