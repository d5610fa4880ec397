"""Word error rates and speed of transcription: Tahr and faster-whisper take turns on the same recordings.

usage: benchmarks/speech.py MODEL SOUNDS TEXTS [--quantize q8_0] [-n 100] [--beam 5] [-t THREADS]
                            [--peer PYTHON --peer-model FOLDER [--peer-type int8]]

SOUNDS is a folder of WAV files, TEXTS names one a line: `name: what is said`. Lines about sounds, letters and digits
and files under a second are left out; -n takes so many, spread over all (0: every one). PYTHON is an interpreter that
has faster-whisper, FOLDER its form of the same model. Both have beams, the ladder of temperatures, no previous text,
and threads alike. Each engine has a process of its own; CPU seconds are of the whole process.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TAHR = """
from tahr import LLM
llm = LLM(MODEL, n_threads=THREADS, max_batch_size=max(BEAMS, 5), **({"quantize": TYPE} if TYPE else {}))
def transcribe(path):
    return "".join(s.text for s in llm.transcribe(path, language="en", beams=BEAMS, uses_previous=False))
"""
FASTER_WHISPER = """
from faster_whisper import WhisperModel
model = WhisperModel(MODEL, device="cpu", compute_type=TYPE, cpu_threads=THREADS)
def transcribe(path):
    found, _ = model.transcribe(path, language="en", beam_size=BEAMS, condition_on_previous_text=False)
    return "".join(s.text for s in found)
"""
SERVE = """
import json, sys, time
transcribe(FIRST)
print("ready", flush=True)
for line in sys.stdin:
    cpu, wall = time.process_time(), time.perf_counter()
    text = transcribe(line.strip())
    print(json.dumps([text, time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
"""
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
SPELLED = {str(i): word for i, word in enumerate(NUMBERS)} | {"okay": "ok", "voice-mail": "voicemail"}
LEFT_OUT = re.compile(r"[\[<(@]|\btone\b.*\b(plays|ascending|descending)\b")


def words_of(text: str) -> list[str]:
    """Words without case, punctuation and other spellings of small numbers."""
    words = re.sub(r"[^\w' ]", " ", text.lower()).split()
    return [SPELLED.get(word, word).strip("'") for word in words]


def n_errors(said: list[str], heard: list[str]) -> int:
    """Words to change, add or leave out."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        above = row
        row = [i]
        for j, other in enumerate(heard, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (word != other)))
    return row[-1]


@dataclass
class Contestant:
    """An engine in a process of its own."""

    name: str
    program: str
    python: str
    values: dict[str, Any]
    wall_s: float = 0.0
    cpu_s: float = 0.0
    errors: int = 0
    worst: list[tuple[int, str, str]] = field(default_factory=list)
    process: Any = None

    def start(self) -> None:
        head = "\n".join(f"{name} = {value!r}" for name, value in self.values.items())
        command = [self.python, "-c", f"{head}\n{self.program}\n{SERVE}"]
        env = {**os.environ, "PYTHONPATH": "." if self.python == sys.executable else ""}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout.readline().strip() == "ready", f"{self.name} did not start"

    def run(self, path: Path, said: list[str]) -> None:
        print(path, file=self.process.stdin, flush=True)
        text, wall_s, cpu_s = json.loads(self.process.stdout.readline())
        self.wall_s += wall_s
        self.cpu_s += cpu_s
        errors = n_errors(said, words_of(text))
        self.errors += errors
        self.worst.append((errors, path.stem, text.strip()))


def recordings(folder: Path, texts: Path, n: int) -> list[tuple[Path, list[str], float]]:
    """Files with their words and seconds."""
    found = []
    for line in texts.read_text(encoding="utf-8").splitlines():
        name, colon, said = line.partition(":")
        path = folder / f"{name}.wav"
        if line.startswith(("letters/", "digits/")) or not colon or LEFT_OUT.search(said) or not path.exists():
            continue
        with wave.open(str(path)) as file:
            seconds = file.getnframes() / file.getframerate()
        if seconds >= 1:
            found.append((path, words_of(said), seconds))
    return found[:: max(1, len(found) // n)][:n] if n else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("sounds", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--quantize", default="")
    parser.add_argument("-n", type=int, default=100)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peer")
    parser.add_argument("--peer-model")
    parser.add_argument("--peer-type", default="int8")
    parser.add_argument("--show", type=int, default=0, help="so many of the worst files of each")
    args = parser.parse_args()
    chosen = recordings(args.sounds, args.texts, args.n)
    common = {"THREADS": args.threads, "BEAMS": args.beam, "FIRST": str(chosen[0][0])}
    contestants = [Contestant("tahr", TAHR, sys.executable, {"MODEL": args.model, "TYPE": args.quantize, **common})]
    if args.peer:
        values = {"MODEL": args.peer_model, "TYPE": args.peer_type, **common}
        contestants.append(Contestant("faster-whisper", FASTER_WHISPER, args.peer, values))
    for contestant in contestants:
        contestant.start()
    for path, said, _ in chosen:
        for contestant in contestants:
            contestant.run(path, said)
    n_words = sum(len(said) for _, said, _ in chosen)
    seconds = sum(each[2] for each in chosen)
    print(f"{len(chosen)} recordings, {n_words} words, {seconds:.0f} s, beam {args.beam}, {args.threads} threads")
    for each in contestants:
        rate = 100 * each.errors / n_words
        print(f"{each.name:15} {rate:6.2f} % of words  {each.wall_s:7.1f} s wall  {each.cpu_s:7.1f} s CPU")
        for errors, name, text in sorted(each.worst, reverse=True)[: args.show]:
            print(f"    {errors} {name}: {text}")
        each.process.stdin.close()


if __name__ == "__main__":
    main()
