"""WAV files: PCM of 8 to 32 bits and floats, plain or extensible, read block by block and mixed down."""

from collections.abc import Iterator
from struct import pack, unpack
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tahr.speech.audio.errors import BadAudio
from tahr.speech.audio.limits import BLOCK_S, RATE, Samples, check_shape

PCM = 1
FLOAT = 3
EXTENSIBLE = 0xFFFE
# The end of an extensible format's name; its first two bytes are one of the numbers above.
SUBFORMAT = bytes.fromhex("000000001000800000aa00389b71")
NAMES = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "ADPCM", 80: "MPEG", 85: "MP3"}
OPEN_END = 0xFFFFFFFF  # size of data that were still being written
MOST_CHUNKS = 256  # limit on chunks before the samples
FORMAT_BYTES = 64  # limit on what is looked at of a chunk


class WavFormat(NamedTuple):
    """The form of the samples."""

    kind: int  # PCM or FLOAT
    n_channels: int
    rate: int
    n_bytes: int  # bytes of a sample

    @property
    def frame_bytes(self) -> int:
        return self.n_channels * self.n_bytes


def read_wav(file: BinaryIO) -> tuple[int, Iterator[Samples]]:
    """Samples a second, and blocks of the mean of all channels. A file may end before its header says."""
    head = file.read(12)
    if head[:4] not in (b"RIFF", b"RF64") or head[8:] != b"WAVE":
        raise BadAudio("The bytes are no WAV file: its beginning is damaged.")
    form = None
    for _ in range(MOST_CHUNKS):
        chunk = file.read(8)
        if len(chunk) < 8:
            break
        name, n_bytes = unpack("<4sI", chunk)
        if name == b"data":
            if form is None:
                raise BadAudio("The WAV file does not say what its samples are before they begin: convert it again.")
            return form.rate, mono_blocks(file, form, n_bytes)
        content = file.read(min(n_bytes, FORMAT_BYTES))
        if name == b"fmt ":
            form = read_format(content)
        skip(file, n_bytes + n_bytes % 2 - len(content))
    raise BadAudio("The WAV file has no samples: it is cut off, or was never finished.")


def skip(file: BinaryIO, n_bytes: int) -> None:
    """Go on behind so many bytes; pipes cannot seek."""
    while n_bytes > 0:
        passed = len(file.read(min(n_bytes, 1 << 16)))
        if not passed:
            return
        n_bytes -= passed


def read_format(content: bytes) -> WavFormat:
    if len(content) < 16:
        raise BadAudio("The WAV file's description of its samples is cut off: convert it again.")
    kind, n_channels, rate, _, frame_bytes, n_bits = unpack("<HHIIHH", content[:16])
    if kind == EXTENSIBLE:
        if content[26:40] != SUBFORMAT:
            raise BadAudio("The WAV file is extensible and of a format that Tahr does not know: convert it to PCM.")
        (kind,) = unpack("<H", content[24:26])
    check_shape(rate, n_channels)
    n_bytes = -(-n_bits // 8)
    if kind not in (PCM, FLOAT):
        raise BadAudio(f"The WAV file holds {NAMES.get(kind, f'format {kind}')}, not PCM or floats: convert it to PCM.")
    if n_bytes not in ((1, 2, 3, 4) if kind == PCM else (4, 8)) or frame_bytes != n_channels * n_bytes:
        raise BadAudio(
            f"The WAV file says that a sample has {n_bits} bits and all channels take {frame_bytes} bytes, which do "
            "not go together: convert it again."
        )
    return WavFormat(kind, n_channels, rate, n_bytes)


def mono_blocks(file: BinaryIO, form: WavFormat, n_bytes: int) -> Iterator[Samples]:
    """Blocks up to the end of the data, or of the file."""
    size = form.frame_bytes * form.rate * BLOCK_S // form.n_channels
    size -= size % form.frame_bytes
    left = n_bytes if n_bytes not in (0, OPEN_END) else None
    rest = b""
    while left is None or left > 0:
        data = file.read(size if left is None else min(size, left))
        if not data:
            return
        left = None if left is None else left - len(data)
        data = rest + data
        n_whole = len(data) - len(data) % form.frame_bytes  # a pipe gives as much as it has
        rest = data[n_whole:]
        yield mono(values_of(data[:n_whole], form).reshape(-1, form.n_channels))


def values_of(data: bytes, form: WavFormat) -> NDArray[Any]:
    """The samples as numbers, of which full scale is 1."""
    if form.kind == FLOAT:
        return np.frombuffer(data, f"<f{form.n_bytes}")
    if form.n_bytes == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if form.n_bytes == 3:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return scaled(wide.view("<i4")[:, 0], 32)
    return scaled(np.frombuffer(data, f"<i{form.n_bytes}"), 8 * form.n_bytes)


def scaled(values: NDArray[Any], n_bits: int) -> Samples:
    found: Samples = values.astype(np.float32) / np.float32(2 ** (n_bits - 1))
    return found


def mono(frames: NDArray[Any]) -> Samples:
    """The mean of all channels; what f32 cannot hold becomes infinite, which is refused later."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = frames[:, 0] if frames.shape[1] == 1 else frames.mean(axis=1)
        found: Samples = values.astype(np.float32)
    return found


def a_tenth_of_noise() -> bytes:
    """A file with a tenth of a second of noise, always the same."""
    values = np.random.default_rng(0).integers(64, 192, RATE // 10, np.uint8)
    form = pack("<4sIHHIIHH", b"fmt ", 16, PCM, 1, RATE, RATE, 1, 8)
    return b"RIFF\0\0\0\0WAVE" + form + pack("<4sI", b"data", len(values)) + values.tobytes()
