"""Store what llama.cpp thinks of an English text, so that tests can compare without it.

usage: make_llama_cpp_fixture.py MODEL.gguf OUT.npz      (needs the package llama-cpp-python)
"""

import sys
from pathlib import Path

import numpy as np

N_TOKENS, TOP = 500, 64
TEXT = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "english.txt"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def llama_cpp_logits(model: str, text: str, n_tokens: int) -> tuple[list[int], np.ndarray]:
    """The first tokens of the text, and the logits llama.cpp gives after each."""
    import llama_cpp

    llm = llama_cpp.Llama(
        model, n_ctx=n_tokens + 16, n_batch=n_tokens, n_ubatch=n_tokens, logits_all=True, verbose=False, n_threads=2
    )
    ids = llm.tokenize(text.encode())[:n_tokens]
    llm.eval(ids)
    return ids, np.array(llm.scores[: len(ids)], np.float64)


def main() -> None:
    """Write ids, and the best log-probabilities with their tokens for each position."""
    model, out = sys.argv[1:]
    ids, logits = llama_cpp_logits(model, TEXT.read_text(), N_TOKENS)
    logprobs = log_softmax(logits)
    best = np.argsort(-logprobs, axis=1)[:, :TOP]
    np.savez_compressed(
        out,
        ids=np.array(ids, np.int32),
        tokens=best.astype(np.int32),
        logprobs=np.take_along_axis(logprobs, best, axis=1).astype(np.float32),
    )
    print(f"{out}: {len(ids)} tokens, {Path(out).stat().st_size} bytes")


if __name__ == "__main__":
    main()
