"""The program of a process that decodes one recording: it may be ended at any moment, and holds nothing but the file.

Its arguments are limits: bytes of memory, seconds of computing, seconds of the recording; then samples a second of its
output. The file is its input; its output are blocks of samples, each behind its number of bytes; the last one has
none, and is followed by a sentence where something is wrong.
"""

import contextlib
import sys
from io import BytesIO
from struct import pack

from tahr.errors import ConfigError
from tahr.speech.audio.limits import AudioLimits
from tahr.speech.audio.reading import read_audio


def limit(memory_bytes: int, computing_s: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system can
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (computing_s, computing_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # strangers can end this process, and must not fill a disk


def main() -> None:
    """Decode the input."""
    memory_bytes, computing_s, most_s, rate = map(int, sys.argv[1:5])
    limit(memory_bytes, computing_s)
    out = sys.stdout.buffer
    said = ""
    try:
        for block in read_audio(BytesIO(sys.stdin.buffer.read()), AudioLimits(most_s), rate):
            out.write(pack("<I", block.nbytes))
            out.write(block.tobytes())
    except ConfigError as error:
        said = f"{type(error).__name__}: {error}"
    except MemoryError:
        said = "BadAudio: The recording needs more memory than decoding may take: convert it to WAV."
    out.write(pack("<I", 0) + said.encode())


if __name__ == "__main__":
    main()
