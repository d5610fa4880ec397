"""Times of words beside those of OpenAI's program, for one recording.

Usage, with openai-whisper and torch in the first environment, Tahr in the second:
    python scripts/word_times.py theirs tiny.en.pt SOUND.wav > theirs.json      (a WAV of 16 kHz, 16 bits)
    python scripts/word_times.py ours FOLDER SOUND.wav theirs.json
"""

import json
import sys
import wave
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

HEADS = {"tiny.en.pt": [(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)]}


def theirs(checkpoint: str, sound: str) -> None:
    import torch
    import whisper

    model = whisper.load_model(checkpoint)
    heads = torch.zeros(model.dims.n_text_layer, model.dims.n_text_head, dtype=torch.bool)
    for layer, head in HEADS[Path(checkpoint).name]:
        heads[layer, head] = True
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    with wave.open(sound) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    found = model.transcribe(samples, word_timestamps=True, beam_size=5, fp16=False)
    json.dump([word for segment in found["segments"] for word in segment["words"]], sys.stdout)


def ours(folder: str, sound: str, words: str) -> None:
    from tahr import LLM

    expected: list[dict[str, Any]] = json.loads(Path(words).read_text())
    with LLM(folder) as llm:
        found = [word for segment in llm.transcribe(sound, beams=5, has_words=True) for word in segment.words or ()]
    same = SequenceMatcher(a=[word["word"] for word in expected], b=[word.text for word in found], autojunk=False)
    pairs = [(expected[m.a + i], found[m.b + i]) for m in same.get_matching_blocks() for i in range(m.size)]
    apart = [max(abs(a["start"] - b.start), abs(a["end"] - b.end)) for a, b in pairs]
    probabilities = [abs(a["probability"] - b.probability) for a, b in pairs]
    print(f"{len(expected)} words, {len(found)} here, {len(pairs)} alike")
    print(f"times at most {max(apart):.2f} s apart, probabilities {max(probabilities):.4f}")


if __name__ == "__main__":
    {"theirs": theirs, "ours": ours}[sys.argv[1]](*sys.argv[2:])
