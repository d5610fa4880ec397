"""Decoding in a process of its own: whatever a stranger's file does to a decoder, it does it there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from struct import unpack
from threading import Thread

import numpy as np

from tahr.speech.audio.errors import AudioTooLong, BadAudio
from tahr.speech.audio.limits import BLOCK, RATE, Samples

Buffer = bytes | memoryview

MEMORY_BYTES = 1 << 30
COMPUTING_S = 120
MOST_BLOCK_BYTES = 4 * BLOCK
MOST_WORDS_BYTES = 1000
ERRORS = {error.__name__: error for error in (BadAudio, AudioTooLong)}
ENDED = "The recording could not be decoded within the limits of time and memory: convert it to WAV, or cut it."


class Decoding:
    """A process that decodes a file's bytes. Any thread may close it, also while another one waits for a block."""

    def __init__(self, data: Buffer, max_s: int, rate: int = RATE):
        arguments = map(str, (MEMORY_BYTES, COMPUTING_S, max_s, rate))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tahr.speech.audio.child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        self._writer = Thread(target=send, args=(self._process, data), daemon=True)
        self._writer.start()

    def blocks(self) -> Iterator[Samples]:
        """Blocks of samples, as they are decoded."""
        return received(self._process)

    def stop(self) -> None:
        """End the process, done or not; whoever waits for a block is told so."""
        self._process.kill()

    def close(self) -> None:
        """End it, and wait until it has."""
        self.stop()
        self._process.wait()
        self._writer.join()
        assert self._process.stdout
        self._process.stdout.close()


@contextmanager
def decoding(data: Buffer, max_s: int, rate: int = RATE) -> Iterator[Iterator[Samples]]:
    """Blocks of a file's bytes; at the end the process is ended."""
    process = Decoding(data, max_s, rate)
    try:
        yield process.blocks()
    finally:
        process.close()


def environment() -> dict[str, str]:
    """The process finds the packages where this one does, and has no threads, whose stacks would count as memory."""
    packages = [find_spec(name) for name in ("numpy", "av")]
    places = [str(Path(found.origin).parents[1]) for found in packages if found and found.origin]
    found = os.pathsep.join([str(Path(__file__).parents[3]), *places])
    return os.environ | {"PYTHONPATH": found, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def send(process: "subprocess.Popen[bytes]", data: Buffer) -> None:
    """Write the whole file; the process may end before it has read it."""
    assert process.stdin
    try:
        process.stdin.write(data)
        process.stdin.close()
    except OSError:
        return


def received(process: "subprocess.Popen[bytes]") -> Iterator[Samples]:
    assert process.stdout
    while True:
        head = process.stdout.read(4)
        n_bytes = unpack("<I", head)[0] if len(head) == 4 else None
        if n_bytes is None or n_bytes > MOST_BLOCK_BYTES:
            raise BadAudio(ENDED)
        if not n_bytes:
            break
        data = process.stdout.read(n_bytes)
        if len(data) < n_bytes:
            raise BadAudio(ENDED)
        yield np.frombuffer(data, np.float32)
    name, _, sentence = process.stdout.read(MOST_WORDS_BYTES).decode(errors="replace").partition(": ")
    if sentence:
        raise ERRORS.get(name, BadAudio)(sentence)
