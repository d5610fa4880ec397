"""Files of few kinds become samples, with PyAV: one stream of sound is decoded, and nothing but the file is opened."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tahr.errors import ConfigError, install_extra
from tahr.speech.audio.errors import BadAudio
from tahr.speech.audio.kinds import AudioKind
from tahr.speech.audio.limits import Samples, check_shape

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame

CODECS = ("pcm_", "flac", "mp3", "aac", "alac", "vorbis", "opus", "amr")  # beginnings of names
MOST_SILENT = 100_000  # packets in a row without a sample
OPTIONS = {"protocol_whitelist": "", "format_whitelist": "", "enable_drefs": "0"}


def check_av(kind: AudioKind) -> None:
    """Refuse what only the library reads, where it is missing."""
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{kind.name} files need PyAV, which is not installed: run {install_extra('audio')}, or send WAV."
        ) from error


def decoded(file: BinaryIO, kind: AudioKind) -> tuple[int, Iterator[Samples]]:
    """Samples a second, and the frames of the first stream of sound, mixed down."""
    check_av(kind)
    import av

    try:
        options = OPTIONS | {"format_whitelist": kind.demuxer if kind.demuxer != "mov" else "mov,mp4,m4a,3gp,3g2,mj2"}
        options |= {"format_whitelist": "matroska,webm"} if kind.demuxer == "matroska" else {}
        container: Any = av.open(file, format=kind.demuxer, options=options)
    except MemoryError:
        raise
    except Exception as error:  # damaged headers have many ways to fail
        raise damaged(kind) from error
    if not container.streams.audio:
        raise BadAudio(f"The {kind.name} file has no sound, or what there is is of no kind that Tahr decodes.")
    stream = container.streams.audio[0]
    codec = stream.codec_context.name
    if not codec.startswith(CODECS):
        raise BadAudio(f"The sound in the {kind.name} file is of the kind {codec[:40]!r}: convert it to WAV or MP3.")
    stream.thread_count = 1
    try:
        frames = frames_of(container, stream)
        first = next(frames, None)
    except (BadAudio, MemoryError):
        raise
    except Exception as error:
        raise damaged(kind) from error
    if first is None:
        raise BadAudio(f"Nothing in the {kind.name} file can be decoded: it is empty, damaged or encrypted.")
    return first.sample_rate, samples_of(first, frames, first.sample_rate)


def damaged(kind: AudioKind) -> BadAudio:
    return BadAudio(f"The {kind.name} file is damaged or cut off: send the whole file.")


def frames_of(container: Any, stream: Any) -> Iterator["AudioFrame"]:
    """The frames of a stream; a damaged packet is left out."""
    import av

    n_silent = 0
    packets = container.demux(stream)
    while n_silent < MOST_SILENT:
        n_silent += 1
        try:
            packet = next(packets, None)
            if packet is None:
                return
            for frame in packet.decode():
                n_silent = 0
                yield frame
        except av.error.InvalidDataError:
            continue
        except (av.error.FFmpegError, EOFError):
            return  # the end of what is there


def samples_of(first: "AudioFrame", frames: Iterator["AudioFrame"], rate: int) -> Iterator[Samples]:
    yield mixed(first, rate)
    for frame in frames:
        yield mixed(frame, rate)


def mixed(frame: "AudioFrame", rate: int) -> Samples:
    """The mean of a frame's channels, of which full scale is 1."""
    n_channels = frame.layout.nb_channels
    check_shape(frame.sample_rate, n_channels)
    if frame.sample_rate != rate:
        raise BadAudio("The recording changes its samples a second on the way: convert it to WAV.")
    values: Any = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, n_channels).T
    if values.dtype.kind == "u":
        values = (values.astype(np.float32) - 128) / 128
    elif values.dtype.kind == "i":
        values = values.astype(np.float32) / 2 ** (8 * values.dtype.itemsize - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        found: Samples = values.mean(axis=0).astype(np.float32)
    return found
