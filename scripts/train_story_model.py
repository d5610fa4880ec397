"""Trains the tiny llama of tests/fixtures/story_model on the stories beside it, and stores what transformers answers.

Run: .venv-parity/bin/python scripts/train_story_model.py   (two minutes; tests/helpers/story_model.py reads the result)
"""

import json
import random
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers"), str(ROOT / "scripts")]

import story_model  # noqa: E402
from make_model_fixtures import expected_story  # noqa: E402
from tahr.text.tokens.tokenizer import Tokenizer  # noqa: E402

N_STEPS, N_LEARNED = 500, 512 - 259
SPACE = "▁"


def learned_pieces(text: str) -> list[str]:
    """Byte-pair encoding of the words of `text`: the merges in order, then every letter."""
    words = Counter(tuple(SPACE + word) for word in text.split())
    letters = sorted({letter for word in words for letter in word})
    merges: list[str] = []
    while len(merges) < N_LEARNED - len(letters):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, n in words.items():
            for pair in pairwise(word):
                pairs[pair] += n
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if "".join(best) not in merges:
            merges.append("".join(best))
        words = Counter({merged(word, best): n for word, n in words.items()})
    return merges + letters


def merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)


def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf({key: item.value for key, item in story_model.vocabulary_metadata().items()})


def batch(stories: list[list[int]], order: random.Random, n_rows: int = 2, length: int = 512) -> torch.Tensor:
    """Rows of whole stories in random order, cut at the context's length."""
    rows = []
    for _ in range(n_rows):
        row: list[int] = []
        while len(row) < length:
            row += order.choice(stories)
        rows.append(row[:length])
    return torch.tensor(rows)


def trained(stories: list[list[int]]) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**story_model.CONFIG))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=N_STEPS)
    order = random.Random(0)
    for step in range(N_STEPS):
        ids = batch(stories, order)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def stored(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """Each row as int8 and a scale (norms are one row)."""
    out: dict[str, np.ndarray] = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        values = value.numpy().astype(np.float64)
        scales = np.abs(values).max(axis=-1) / 127
        out[f"{name}:rows"] = np.rint(values / scales[..., None]).astype(np.int8)
        out[f"{name}:scales"] = scales.astype(np.float32)
    return out


def main() -> None:
    """Learn the vocabulary, train, store, and read the stored numbers back for the expected story."""
    text = (story_model.FIXTURE / "stories.txt").read_text(encoding="utf-8")
    (story_model.FIXTURE / "pieces.json").write_text(json.dumps(learned_pieces(text), ensure_ascii=False) + "\n")
    encode = tokenizer().encode
    model = trained([[*encode(story.strip()), 2] for story in text.split("\n\n")])
    np.savez_compressed(story_model.FIXTURE / "weights.npz", **stored(model))
    with tempfile.TemporaryDirectory() as folder:
        story_model.write(Path(folder))
        ids = expected_story(Path(folder) / "hf")
    (story_model.FIXTURE / "greedy.json").write_text(json.dumps(ids) + "\n")
    print(tokenizer().decode(ids))


if __name__ == "__main__":
    main()
