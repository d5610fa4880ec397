"""The gate before the model: what goes on as it is, is passed over; what may be speech never is."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import speech_models
from sounds import tone
from tahr import LLM
from tahr.speech.audio.gate import LEAST_WINDOW, is_steady
from tahr.speech.audio.limits import RATE
from tahr.speech.audio.mel import log_mel
from tahr.speech.audio.windows import SoundReader, SoundWindow
from tahr.speech.decoding.options import TranscribeOptions

N = 30 * RATE + 400
Sound = Callable[[], np.ndarray]


def noise(loud: float, slope: float = 0.0) -> np.ndarray:
    """Noise whose power falls with frequency."""
    spectrum = np.fft.rfft(np.random.RandomState(0).standard_normal(N))
    spectrum /= np.maximum(np.arange(len(spectrum)), 1) ** slope
    samples = np.fft.irfft(spectrum, N)
    return (loud * samples / np.abs(samples).max()).astype(np.float32)


def hum() -> np.ndarray:
    return np.sum([tone(50 * k, N, RATE, 0.2 / k) for k in range(1, 20)], axis=0)


STEADY: dict[str, Sound] = {
    "loud noise": lambda: noise(0.9),
    "faint noise": lambda: noise(0.003),
    "pink noise": lambda: noise(0.5, 0.5),
    "brown noise": lambda: noise(0.5, 1.0),
    "a tone": lambda: tone(440, N, RATE),
    "a low tone in noise": lambda: tone(50, N, RATE) + noise(0.01),
    "hum": hum,
    "noise that grows": lambda: noise(0.5) * np.linspace(0.01, 1, N, dtype=np.float32),
}


def syllables(n: int, loud: float = 0.3) -> np.ndarray:
    """Vowels of a pulse whose formants go from one place to another, with pauses: what speech is to a gate."""
    seconds = np.arange(n) / RATE
    pulses = np.sign(np.sin(2 * np.pi * 110 * seconds)) * (np.sin(2 * np.pi * 1.5 * seconds) > -0.5)
    first = 500 + 300 * np.sin(2 * np.pi * 2 * seconds)
    return (loud * pulses * np.sin(2 * np.pi * np.cumsum(first) / RATE)).astype(np.float32)


def in_silence(begin_s: float, length_s: float) -> np.ndarray:
    samples = noise(0.002)
    begin = int(begin_s * RATE)
    n = int(length_s * RATE)
    samples[begin : begin + n] += syllables(n)
    return samples


HEARD: dict[str, Sound] = {
    "speech": lambda: syllables(N),
    "speech in noise": lambda: syllables(N) + noise(0.3),
    "faint speech": lambda: syllables(N, 0.003),
    "a word": lambda: in_silence(12, 0.5),
    "a word at the beginning": lambda: in_silence(0, 0.4),
    "a word at the end": lambda: in_silence(29.4, 0.6),
}


@pytest.mark.parametrize("n_bins", [80, 128])
@pytest.mark.parametrize("name", STEADY)
def test_what_goes_on_as_it_is(name: str, n_bins: int) -> None:
    assert is_steady(log_mel(STEADY[name](), 3000, n_bins))


@pytest.mark.parametrize("n_bins", [80, 128])
@pytest.mark.parametrize("name", HEARD)
def test_what_may_be_speech(name: str, n_bins: int) -> None:
    assert not is_steady(log_mel(HEARD[name](), 3000, n_bins))


def test_short_windows_are_left_to_the_model() -> None:
    frames = log_mel(noise(0.5), 3000, 80)
    assert is_steady(frames[:LEAST_WINDOW]) and not is_steady(frames[: LEAST_WINDOW - 1])


def windows(sound: Iterator[np.ndarray], passes: bool = True, n_frames: int = 3000) -> list[tuple[int, SoundWindow]]:
    reader = SoundReader(sound, n_frames, 80, passes)
    found: list[tuple[int, SoundWindow]] = []
    frame = 0
    while window := reader.read(frame):
        found.append((frame, window))
        frame += window.n_frames
        if window.is_last:
            break
    return found


@pytest.mark.parametrize("name", STEADY)
def test_ten_minutes_without_speech_reach_no_model(name: str) -> None:
    sound = STEADY[name]()
    found = windows(iter([sound] * 20))
    assert all(window.is_silent for _, window in found)
    assert found[-1][1].is_last and sum(found[-1][:1]) + found[-1][1].n_frames == 20 * N // 160
    assert not any(window.is_silent for _, window in windows(iter([sound] * 2), passes=False))


def test_a_word_behind_a_passed_window_is_heard_whole() -> None:
    """The end of a window that is passed over is the beginning of the next one."""
    sound = noise(0.002)
    sound = np.concatenate([sound, sound])
    begin = 30 * RATE - 800  # 50 ms before the first window ends
    sound[begin : begin + RATE] += syllables(RATE)
    found = windows(iter([sound]))
    heard = [frame for frame, window in found if not window.is_silent]
    assert found[0][1].is_silent and heard and heard[0] < begin // 160


@pytest.mark.parametrize("n_frames", [LEAST_WINDOW, LEAST_WINDOW + 1, 2 * LEAST_WINDOW])
def test_short_windows_go_on(n_frames: int) -> None:
    found = windows(iter([noise(0.5)]), n_frames=n_frames)
    assert found[-1][1].is_last and len(found) < 50


def test_the_switch(tmp_path: Path) -> None:
    assert TranscribeOptions().passes_silence
    with LLM(str(speech_models.write(tmp_path))) as llm:
        found = llm.transcribe(noise(0.5)[:RATE], passes_silence=False, language="en", max_ratio=None,
                               least_logprob=None, no_speech=None)  # fmt: skip
        assert list(found)
