"""Recordings that are made for tests."""

import wave
from io import BytesIO
from struct import pack

import numpy as np


def tone(hertz: float, n: int, rate: int, loud: float = 0.5) -> np.ndarray:
    return (loud * np.sin(2 * np.pi * hertz * np.arange(n) / rate)).astype(np.float32)


def wav(samples: np.ndarray, rate: int = 16_000) -> bytes:
    """16 bits; [n] or [n, n_channels]."""
    out = BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(samples.shape[1] if samples.ndim > 1 else 1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).round().astype("<i2").tobytes())
    return out.getvalue()


def riff(fmt: bytes, data: bytes, n_data: int | None = None, before: bytes = b"") -> bytes:
    """A WAV file of any format, whose header may lie about its length."""
    n = len(data) if n_data is None else n_data
    return b"RIFF\0\0\0\0WAVE" + before + b"fmt " + pack("<I", len(fmt)) + fmt + b"data" + pack("<I", n) + data


def format_of(kind: int, n_channels: int, rate: int, n_bits: int, frame: int | None = None) -> bytes:
    frame = n_channels * n_bits // 8 if frame is None else frame
    return pack("<HHIIHH", kind, n_channels, rate, 0, frame, n_bits)


def extensible(kind: int, n_channels: int, rate: int, n_bits: int) -> bytes:
    name = pack("<H", kind) + bytes.fromhex("000000001000800000aa00389b71")
    return format_of(0xFFFE, n_channels, rate, n_bits) + pack("<HHI", 22, n_bits, 0) + name


def in_one_frame(samples: np.ndarray, rate: int = 16_000) -> bytes:
    """A Matroska file of 8 bits, all of whose samples are one packet."""
    import av

    out = BytesIO()
    with av.open(out, "w", format="matroska") as file:
        stream = file.add_stream("pcm_u8", rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray((samples * 127 + 128).astype(np.uint8)[None], format="u8", layout="mono")
        frame.sample_rate = rate
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()


def encoded(samples: np.ndarray, rate: int, container: str, codec: str) -> bytes:
    """A file that PyAV writes."""
    import av

    out = BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(
            stream.format.name, "mono", rate, frame_size=stream.codec_context.frame_size or 1024
        )
        for each in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(each))
        file.mux(stream.encode(None))
    return out.getvalue()
