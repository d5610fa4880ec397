"""Files of an engine's steps: JSON lines, or a picture for chrome://tracing. They never grow beyond a bound."""

import json
import logging
import threading
from collections.abc import Sequence as ListOf
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tahr.engine.step_log import MAX_IDS, Facts
from tahr.errors import ConfigError

if TYPE_CHECKING:
    from tahr.engine.sequences.sequence import Sequence


MAX_BYTES = 64 * 2**20

log = logging.getLogger("tahr.engine")


class BoundedFile:
    """Lines for a file that never holds more than `max_bytes`; what comes later is left out, and said so once."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES):
        try:
            self._file: TextIO = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror}): name another file.") from error
        self._left = max_bytes
        self._lock = threading.Lock()  # several models may share it

    def write(self, line: str, full: str) -> None:
        with self._lock:
            if self._left <= 0 or self._file.closed:
                return
            self._left -= len(line) + 1
            try:
                self._file.write((line if self._left > 0 else full) + "\n")
            except OSError as error:  # a full disk, say: requests go on
                self._left = 0
                log.error("A trace ends here (%s); requests go on.", error.strerror)

    def close(self) -> None:
        with self._lock, suppress(OSError):
            self._file.close()


class DecisionLog:
    """One JSON object per step and line."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES):
        self._file = BoundedFile(path, max_bytes)

    def step(self, model: str, facts: Facts, ended: "ListOf[Sequence]") -> None:
        over = {"ended": {seq.id: seq.result.finish_reason for seq in ended[:MAX_IDS]}} if ended else {}
        self._file.write(json.dumps(facts | over), full='{"full": true}')

    def close(self) -> None:
        self._file.close()


class ChromeTrace:
    """Steps and the parts of requests in a picture, in the format of chrome://tracing and Perfetto."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES):
        self._file = BoundedFile(path, max_bytes)
        self._file.write("[", full="[")  # the format allows that the end is missing

    def step(self, model: str, facts: Facts, ended: "ListOf[Sequence]") -> None:
        args = {name: facts[name] for name in ("step", "n_tokens", "running", "waiting", "pages_used", "n_preempted")}
        self._event("step", model, 0, facts["began_s"], facts["seconds"], args)
        for seq in ended:
            for name, begun, over in seq.result.stats.parts():
                self._event(name, model, seq.id, begun, over - begun, {"finish_reason": seq.result.finish_reason})

    def _event(self, name: str, model: str, row: int, began_s: float, seconds: float, args: Facts) -> None:
        event = {"name": name, "ph": "X", "pid": model, "tid": row, "ts": began_s * 1e6, "dur": seconds * 1e6}
        self._file.write(json.dumps(event | {"args": args}) + ",", full="{}]")

    def close(self) -> None:
        self._file.write("{}]", full="{}]")
        self._file.close()
