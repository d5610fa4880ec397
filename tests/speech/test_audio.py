"""Recordings become samples at 16 kHz, and these become frames, as the makers of the models made them."""

import tracemalloc
from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pytest

from sounds import encoded, extensible, format_of, in_one_frame, riff, tone, wav
from tahr.errors import ConfigError
from tahr.speech.audio import decode, mel, process
from tahr.speech.audio.errors import AudioTooLong, BadAudio
from tahr.speech.audio.limits import BLOCK, RATE, AudioLimits
from tahr.speech.audio.reading import read_audio
from tahr.speech.audio.resample import Resampler, resampled

PLACES = ["here", "apart"]  # in this process, and in one of its own


def read(data: bytes, max_s: float | None = None) -> np.ndarray:
    return np.concatenate([*read_audio(BytesIO(data), AudioLimits(max_s)), np.zeros(0, np.float32)])


def read_at(place: str, data: bytes, max_s: int = 3600) -> np.ndarray:
    if place == "here":
        return read(data, max_s)
    with process.decoding(data, max_s) as blocks:
        return np.concatenate([*blocks, np.zeros(0, np.float32)])


# ---- WAV ------------------------------------------------------------------------------------------------------

VALUES = np.array([0.0, 0.5, -0.5, 0.25, -1.0, 0.75], np.float32)


def packed(n_bits: int, kind: int = 1) -> bytes:
    if kind == 3:
        return VALUES.astype(f"<f{n_bits // 8}").tobytes()
    if n_bits == 8:
        return (VALUES * 128 + 128).clip(0, 255).astype(np.uint8).tobytes()
    whole = (VALUES.astype(np.float64) * 2 ** (n_bits - 1)).astype("<i8")
    return b"".join(int(v).to_bytes(n_bits // 8, "little", signed=True) for v in whole)


@pytest.mark.parametrize("make", [format_of, extensible])
@pytest.mark.parametrize(("kind", "n_bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_every_form_of_samples(make: object, kind: int, n_bits: int) -> None:
    data = riff(make(kind, 1, RATE, n_bits), packed(n_bits, kind), before=b"LIST\x03\0\0\0abc\0")  # type: ignore[operator]
    np.testing.assert_array_equal(read(data), VALUES)


def test_channels_are_mixed_down() -> None:
    both = np.stack([VALUES, np.zeros_like(VALUES)], axis=1)
    np.testing.assert_array_equal(read(riff(format_of(3, 2, RATE, 32), both.tobytes())), VALUES / 2)


@pytest.mark.parametrize("n", [0, 1, 0xFFFFFFFF, 1 << 31])
def test_lengths_in_headers_are_not_believed(n: int) -> None:
    """A length that is not known yet stands for all that follows; one that is too long ends with the file."""
    data = riff(format_of(3, 1, RATE, 32), VALUES.tobytes(), n_data=n)
    np.testing.assert_array_equal(read(data), VALUES[:0] if n == 1 else VALUES)


def test_a_pipe_may_give_any_number_of_bytes() -> None:
    class Pipe(BytesIO):
        def read(self, n: int | None = -1) -> bytes:
            return super().read(min(7, n) if n and n > 64 else n)

        def seekable(self) -> bool:
            return False

    found = list(read_audio(Pipe(wav(VALUES * 0.9))))
    np.testing.assert_allclose(np.concatenate(found), VALUES * 0.9, atol=1e-4)


FORMAT = format_of(1, 1, RATE, 16)
BAD = {
    "nothing": (b"", "is empty"),
    "text": (b"hello, this is no recording", "no recording that Tahr knows"),
    "playlist": (b"#EXTM3U\nhttp://10.0.0.1/x.ts", "a playlist"),
    "page": (b"<html>", "a web page"),
    "riff": (b"RIFF\0\0\0\0AVI LIST", "no recording that Tahr knows"),
    "no-samples": (b"RIFF\0\0\0\0WAVE", "has no samples"),
    "samples-first": (b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd", "does not say what its samples are"),
    "cut-format": (riff(FORMAT[:9], b""), "is cut off"),
    "zero-rate": (riff(format_of(1, 1, 0, 16), b"ab"), "0 samples a second"),
    "forged-rate": (riff(format_of(1, 8, 655_350, 16), b"ab" * 8), "655350 samples a second"),
    "no-channel": (riff(format_of(1, 0, RATE, 16), b"ab"), "0 channels"),
    "255-channels": (riff(format_of(1, 255, RATE, 16), b"ab" * 255), "255 channels"),
    "frame": (riff(format_of(1, 2, RATE, 16, frame=2), b"abcd"), "go together"),
    "12-bytes": (riff(format_of(1, 1, RATE, 96), b"ab" * 12), "go together"),
    "adpcm": (riff(format_of(2, 1, RATE, 16), b"ab"), "holds ADPCM"),
    "other": (riff(format_of(99, 1, RATE, 16), b"ab"), "holds format 99"),
    "extensible": (riff(extensible(1, 1, RATE, 16)[:-1] + b"x", b"ab"), "extensible"),
    "nan": (riff(format_of(3, 1, RATE, 32), np.array([0, np.nan], np.float32).tobytes()), "no numbers"),
    "infinite": (riff(format_of(3, 1, RATE, 64), np.array([1e300]).tobytes()), "no numbers"),
    "loud": (riff(format_of(3, 1, RATE, 32), np.array([1e30], np.float32).tobytes()), "far beyond full scale"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_by_what_is_wrong(name: str) -> None:
    data, sentence = BAD[name]
    with pytest.raises(BadAudio, match=sentence):
        read(data)


def test_a_process_of_its_own_says_the_same() -> None:
    for name in ("text", "forged-rate", "nan"):
        with pytest.raises(BadAudio, match=BAD[name][1]):
            read_at("apart", BAD[name][0])


def test_a_recording_may_end_anywhere() -> None:
    data = wav(tone(440, 3000, RATE))
    for n in range(0, len(data), 97):
        try:
            found = read(data[:n])
        except BadAudio:
            assert n <= 44
        else:
            assert len(found) == (n - 44) // 2


@pytest.mark.parametrize("place", PLACES)
def test_long_recordings_are_refused_when_they_are_too_long(place: str) -> None:
    data = wav(np.zeros(3 * RATE, np.float32))
    assert len(read_at(place, data, 3)) == 3 * RATE
    with pytest.raises(AudioTooLong, match="longer than the 2 s"):
        read_at(place, data, 2)


# ---- resampling -----------------------------------------------------------------------------------------------


ODD = (11127, 383_999)  # taken for the nearest rate whose ratio is short


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 24000, 32000, 44100, 48000, 96000, *ODD])
def test_a_tone_stays_that_tone(rate: int) -> None:
    n = rate // 2
    found = np.concatenate(list(resampled(rate, iter([tone(1000, n, rate)]))))
    assert abs(len(found) - RATE // 2) <= 1
    wanted = tone(1000, len(found), RATE)
    inner = slice(500, -500)  # at its ends a recording meets silence
    np.testing.assert_allclose(found[inner], wanted[inner], atol=5e-3 if rate in ODD else 2e-4)


def test_blocks_of_any_size_give_the_bits_of_the_whole() -> None:
    whole = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)

    def blocks() -> Iterator[np.ndarray]:
        at = 0
        for n in (1, 0, 7, 5000, 300, 14_692):
            yield whole[at : at + n]
            at += n

    for rate in (8000, 44100):
        wanted = np.concatenate(list(resampled(rate, iter([whole]))))
        np.testing.assert_allclose(np.concatenate(list(resampled(rate, blocks()))), wanted, atol=1e-6)


def test_what_lies_above_the_band_is_80_db_down_and_what_lies_in_it_is_kept() -> None:
    def level(hertz: float, rate: int) -> float:
        found = np.concatenate(list(resampled(rate, iter([tone(hertz, rate, rate, 1.0)]))))[2000:-2000]
        return float(20 * np.log10(np.sqrt(2 * np.mean(found**2)) + 1e-12))

    for hertz in (8200, 9000, 12_000, 20_000):
        assert level(hertz, 48_000) < -80
    for hertz in (100, 3000, 6900):
        assert abs(level(hertz, 48_000)) < 0.1
        assert abs(level(min(hertz, 3400), 8000)) < 0.1


def test_memory_of_a_resampler_does_not_grow() -> None:
    resampler = Resampler(44100)
    for _ in range(50):
        resampler.feed(np.zeros(1000, np.float32))
    assert len(resampler._held) < 1000


# ---- PyAV -----------------------------------------------------------------------------------------------------

FORMS = [
    ("mp3", "libmp3lame"),
    ("flac", "flac"),
    ("ipod", "aac"),
    ("ogg", "libopus"),
    ("webm", "libopus"),
    ("adts", "aac"),
]


@pytest.mark.parametrize("place", PLACES)
def test_a_damaged_file_is_refused_in_our_words(place: str) -> None:
    pytest.importorskip("av")
    data = encoded(tone(1000, 4800, 48_000), 48_000, "flac", "flac")
    with pytest.raises(BadAudio) as refused:
        read_at(place, data[:4] + b"\xff" * 200)
    assert str(refused.value) == "The FLAC file is damaged or cut off: send the whole file."


def test_memory_that_is_missing_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    av = pytest.importorskip("av")

    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(av, "open", full)
    with pytest.raises(MemoryError):
        read_at("here", b"fLaC" + bytes(100))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("container", "codec"), FORMS)
def test_other_files(container: str, codec: str, place: str) -> None:
    """The loudest frequency of a tone survives every codec."""
    pytest.importorskip("av")
    found = read_at(place, encoded(tone(1000, 48_000, 48_000), 48_000, container, codec))
    assert abs(len(found) - RATE) < RATE // 8
    middle = found[2000:14_000]
    loudest = np.abs(np.fft.rfft(middle * np.hanning(len(middle)))).argmax() * RATE / len(middle)
    assert abs(loudest - 1000) < 5 and 0.3 < np.abs(middle).max() < 0.7


def test_a_frame_as_long_as_its_file_comes_in_blocks() -> None:
    pytest.importorskip("av")
    data = in_one_frame(tone(300, 3 * BLOCK - 7, RATE))
    with process.decoding(data, 3600) as blocks:
        apart = list(blocks)
    here = list(read_audio(BytesIO(data)))
    assert [len(block) for block in apart] == [len(block) for block in here] == [BLOCK, BLOCK, BLOCK - 7]
    np.testing.assert_array_equal(np.concatenate(apart), np.concatenate(here))


def test_cut_off_files_end_or_are_refused() -> None:
    pytest.importorskip("av")
    for container, codec in FORMS:
        data = encoded(tone(1000, 48_000, 48_000), 48_000, container, codec)
        for n in range(1, len(data), 997):
            try:
                assert len(read(data[:n])) < 1.2 * RATE
            except BadAudio:
                continue


def test_without_the_library_a_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(ConfigError, match=r"MP3 files need PyAV.*pip install '.*\[audio\]'"):
        read(b"ID3" + bytes(100))
    with pytest.raises(ConfigError, match="WebM files need PyAV"):
        decode.check_av(decode.AudioKind("WebM", "matroska"))


# ---- frames ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bins", [80, 128])
def test_frames_are_those_of_the_definition(n_bins: int) -> None:
    """In f64 and step by step; `tests/parity` compares with the makers' own code."""
    x = np.random.default_rng(1).standard_normal(RATE // 2).astype(np.float32) * 0.1
    n_frames = len(x) // mel.HOP
    found = mel.log_mel(mel.reflected(x), n_frames, n_bins)
    padded = np.pad(x.astype(np.float64), mel.N_FFT // 2, mode="reflect")
    padded[len(x) + mel.N_FFT // 2 :] = 0
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(mel.N_FFT) / mel.N_FFT)
    spectra = [np.fft.rfft(padded[i * mel.HOP :][: mel.N_FFT] * hann) for i in range(n_frames)]
    power = np.abs(np.array(spectra)) ** 2 @ mel.filters(n_bins).astype(np.float64).T
    wanted = np.log10(np.maximum(power, 1e-10))
    wanted = (np.maximum(wanted, wanted.max() - 8) + 4) / 4
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_frames_of_a_window_take_little_memory() -> None:
    """Spectra of all frames at once would take four times as much; many windows are read at once."""
    samples = tone(300, 30 * RATE, RATE)
    mel.log_mel(samples, 3000, 80)
    tracemalloc.start()
    mel.log_mel(samples, 3000, 80)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_filters_have_equal_areas_and_cover_the_band() -> None:
    for n_bins in (80, 128):
        found = mel.filters(n_bins)
        assert found.shape == (n_bins, 201) and (found.max(axis=1) > 0).all()
        assert (found[:, 5:195].sum(axis=0) > 0).all()
