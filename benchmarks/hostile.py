"""Eight ordinary streams beside one hostile client: do the streams notice, does memory stay, does a signal end it?

usage: benchmarks/hostile.py MODEL [--seconds 300] [--most-gap 1] [--most-growth 50] [OPTIONS OF SERVE]
Each stream asks its own prompt greedily again and again; its text must be the one it got alone. Exits with 1 if a text
differs, two events of a stream lie further apart than --most-gap seconds, the medians of memory in the second third and
in the last differ by more than --most-growth MB (what attacks take comes and goes), or the process ends later than
--most-end seconds (the drain timeout) after SIGTERM.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from lean_client import request
from server_process import Server, resident_mb, serving

PROMPTS = [
    *("Once upon a time", "The dog had a", "One day, a little goat", "Lily and Tom"),
    *("The sun was", "A big cloud", "He was the smallest", "They went to the sea"),
]
N_TOKENS = 96
DRAIN_S = 5.0
# A small pool: its pages become resident when they are first used, and that should be over after a third of the time.
SERVE = ("--drain-timeout", str(DRAIN_S), "--ctx", "512", "--max-num-seqs", "12", "--file-store-max-bytes", "256m")


@dataclass
class Streams:
    """What the ordinary clients saw."""

    texts: dict[str, set[str]] = field(default_factory=dict)
    gaps_s: list[tuple[float, float]] = field(default_factory=list)  # length, and when it ended
    first_s: list[float] = field(default_factory=list)
    n_whole: int = 0


def body(prompt: str) -> bytes:
    sampling = {"temperature": 0, "max_tokens": N_TOKENS, "ignore_eos": True}
    return request("/v1/completions", {"prompt": prompt, "stream": True, **sampling})


async def one_stream(address: str, prompt: str, seen: Streams) -> None:
    """Ask once and note when every event came."""
    url = urlsplit(address)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        last = time.monotonic()
        writer.write(body(prompt))
        text, n_events = "", 0
        async for line in reader:
            if not line.startswith(b"data: {"):
                if line.startswith(b"data: [DONE]"):
                    break
                continue
            now = time.monotonic()
            if n_events:
                seen.gaps_s.append((now - last, now))
            else:
                seen.first_s.append(now - last)
            last, n_events = now, n_events + 1
            event = json.loads(line[6:])
            text += (
                "".join(choice["text"] for choice in event.get("choices", ())) if "error" not in event else str(event)
            )
        seen.texts.setdefault(prompt, set()).add(text)
        seen.n_whole += 1
    finally:
        writer.close()


async def ordinary(address: str, prompt: str, seen: Streams, until: float) -> None:
    while time.monotonic() < until:
        await one_stream(address, prompt, seen)


async def watch(pid: int, until: float, sizes: list[float]) -> None:
    while time.monotonic() < until:
        sizes.append(resident_mb(pid))
        await asyncio.sleep(0.5)


async def alone(address: str) -> dict[str, set[str]]:
    """Each prompt's text while nobody else asks."""
    seen = Streams()
    for prompt in PROMPTS:
        await one_stream(address, prompt, seen)
    return seen.texts


async def together(server: Server, seconds: float, seen: Streams, sizes: list[float]) -> None:
    until = time.monotonic() + seconds
    streams = [ordinary(server.address, prompt, seen, until) for prompt in PROMPTS]
    await asyncio.gather(watch(server.pid, until, sizes), *streams)


def end(server: Server) -> float:
    """Seconds from SIGTERM to the end of the process, while the attacker goes on."""
    began = time.monotonic()
    os.kill(server.pid, signal.SIGTERM)
    while is_running(server.pid) and time.monotonic() < began + DRAIN_S + 30:
        time.sleep(0.05)
    return time.monotonic() - began


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def attacks_during(log: Path, gap_s: float, ended: float) -> list[str]:
    """The attacks that were under way in a gap."""
    found = []
    for line in log.read_text().splitlines():
        first, last, name = line.split(" ", 2)
        if float(first) < ended and float(last) > ended - gap_s:
            found.append(name)
    return found


def run(args: argparse.Namespace, log: Path) -> list[str]:
    """Measure and print; what is wrong."""
    seen, sizes = Streams(), list[float]()
    with (
        TemporaryDirectory(prefix="tahr-hostile-") as state,
        serving("--model", args.model, *SERVE, "--state-dir", state, *args.options) as server,
    ):
        wanted = asyncio.run(alone(server.address))
        began = resident_mb(server.pid)
        command = [sys.executable, str(Path(__file__).with_name("attacks.py")), server.address]
        command += ["--seconds", str(args.seconds + 5), "--seed", str(args.seed)]
        command += [
            "--attack-seconds",
            str(args.attack_seconds),
            *(word for name in args.only for word in ("--only", name)),
        ]
        with log.open("w") as errors, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as attacker:
            try:
                asyncio.run(together(server, args.seconds, seen, sizes))
                n_attacks = len(log.read_text().splitlines())
                ended_s = end(server)
            finally:
                attacker.terminate()
    third = len(sizes) // 3
    settled, last = median(sizes[third : 2 * third]), median(sizes[2 * third :])
    gap_s, when = max(seen.gaps_s)
    print(f"{n_attacks} attacks in {args.seconds:.0f} s; {seen.n_whole} ordinary streams ended")
    print(f"longest gap {gap_s:.2f} s, during: {', '.join(attacks_during(log, gap_s, when)) or 'nothing'}")
    print(f"longest wait for a first event {max(seen.first_s):.2f} s")
    print(f"resident: {began:.0f} MB, then {settled:.0f}, in the last third {last:.0f}, at most {max(sizes):.0f}")
    print(f"SIGTERM: ended after {ended_s:.1f} s (drain timeout {DRAIN_S:.0f} s)")
    wrong = {
        "texts differ from those alone": seen.texts != wanted,
        f"a gap of more than {args.most_gap:g} s": gap_s > args.most_gap,
        f"memory changed by more than {args.most_growth:g} MB": abs(last - settled) > args.most_growth,
        f"SIGTERM took longer than {args.most_end:g} s": ended_s > args.most_end,
    }
    return [what for what, is_so in wrong.items() if is_so]


def main() -> None:
    """Run it, say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--attack-seconds", type=float, default=4.0, help="the longest one attack keeps at it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], help="only this attack of attacks.py (repeatable)")
    parser.add_argument("--most-gap", type=float, default=1.0)
    parser.add_argument("--most-growth", type=float, default=50.0)
    parser.add_argument("--most-end", type=float, default=DRAIN_S, help="seconds from SIGTERM to the end")
    parser.add_argument("--log", type=Path, default=Path("build/hostile.log"), help="what the attacker did, and when")
    args, args.options = parser.parse_known_args()
    args.log.parent.mkdir(parents=True, exist_ok=True)
    wrong = run(args, args.log)
    if wrong:
        sys.exit("Wrong: " + "; ".join(wrong) + ".")


if __name__ == "__main__":
    main()
