"""llama.cpp as something to compare with: the program `llama-bench`, or the module `llama_cpp` in some Python."""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tahr.tools.bench import Shape

SCRIPT = Path(__file__).with_name("peer_llama_cpp.py")


class PeerFailed(Exception):
    """The peer cannot do this; the reason goes where its figure would have been."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of both sides."""

    model: Path
    n_threads: int
    n_context: int
    n_batch: int
    n_seqs: int


class Peer(Protocol):
    """One repetition at a time, so that both sides can take turns."""

    version: str
    most_seqs: int | None  # sequences at once; None: any number

    def time(self, shape: "Shape") -> float: ...
    def close(self) -> None: ...


class LlamaBench:
    """The program: started anew for every repetition."""

    most_seqs: int | None = 1

    def __init__(self, program: str, setting: Setting):
        self.version = "llama-bench"
        self._command = [program, "-m", str(setting.model), "-t", str(setting.n_threads), "-r", "1", "-o", "json"]
        self._command += ["-b", str(setting.n_batch), "-ub", str(setting.n_batch)]

    def time(self, shape: "Shape") -> float:
        return shape.n_tokens / self._rate([*self._command, "-d", str(shape.n_depth), *self._what(shape)])

    def _what(self, shape: "Shape") -> list[str]:
        if shape.n_prompt and shape.n_gen:
            return ["-p", "0", "-n", "0", "-pg", f"{shape.n_prompt},{shape.n_gen}"]
        return ["-p", str(shape.n_prompt), "-n", str(shape.n_gen)]

    def _rate(self, command: list[str]) -> float:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            (record,) = json.loads(done.stdout)
            self.version = f"llama-bench {record.get('build_commit', '')}".strip()
            return float(record["avg_ts"])
        except subprocess.CalledProcessError as error:
            raise PeerFailed(f"llama-bench failed: {last_line(error.stderr)}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PeerFailed(f"llama-bench gave no figure ({error})") from error

    def close(self) -> None:
        pass


class LlamaCpp:
    """The module: one process that keeps the model loaded and answers shape after shape."""

    most_seqs: int | None = None

    def __init__(self, python: str, setting: Setting):
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - lives as long as the process
        numbers = setting.n_threads, setting.n_context, setting.n_batch, setting.n_seqs
        command = [python, str(SCRIPT), str(setting.model), *map(str, numbers)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
            )
        except OSError as error:
            raise PeerFailed(f"{python} does not run ({error.strerror})") from error
        self.version = str(self._answer()["version"])

    def time(self, shape: "Shape") -> float:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(asdict(shape)) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerFailed("llama_cpp has ended") from error
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise PeerFailed(f"llama_cpp ended: {last_line(self._log.read())}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer

    def close(self) -> None:
        """End the process by ending its input."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()


def open_peer(setting: Setting, peer_python: str | None, llama_bench: str | None) -> Peer:
    """llama.cpp by what was named, or by what is found here."""
    if setting.model.suffix != ".gguf":
        raise PeerFailed("llama.cpp reads GGUF files only")
    if peer_python:
        return LlamaCpp(peer_python, setting)
    if program := shutil.which(llama_bench or "llama-bench"):
        return LlamaBench(program, setting)
    if llama_bench is None and find_spec("llama_cpp"):
        return LlamaCpp(sys.executable, setting)
    raise PeerFailed("there is no llama-bench on the PATH, and no module llama_cpp")


def last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"
