"""llama.cpp's side of perplexity.py: a program of its own, for a Python that has llama_cpp and no Tahr.

usage: perplexity_llama_cpp.py MODEL.gguf OUT.npz      ({"windows": [[ids]], "begin": n} on stdin)
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

import numpy as np


class Model:
    """A loaded model that gives the logits of whole windows."""

    def __init__(self, path: str, n_context: int):
        self.lc: Any = import_module("llama_cpp")
        self.lc.llama_backend_init()
        model = self.lc.llama_model_load_from_file(path.encode(), self.lc.llama_model_default_params())
        params = self.lc.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_context
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        self.context = self.lc.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.n_vocab = self.lc.llama_vocab_n_tokens(self.lc.llama_model_get_vocab(model))

    def logprobs(self, ids: list[int], begin: int) -> np.ndarray:
        """Log-probabilities after the tokens from `begin` on."""
        self.lc.llama_memory_clear(self.lc.llama_get_memory(self.context), True)
        batch = self.lc.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, i >= begin
            batch.seq_id[i][0] = 0
        if failed := self.lc.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode failed with {failed}")
        n_rows = len(ids) - begin
        stored = np.ctypeslib.as_array(self.lc.llama_get_logits(self.context), (n_rows * self.n_vocab,))
        rows = stored.reshape(n_rows, self.n_vocab).astype(np.float64)
        self.lc.llama_batch_free(batch)
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        return rows


def main() -> None:
    path, out = sys.argv[1:]
    requested = json.load(sys.stdin)
    begin, cut = requested["begin"], requested["windows"]
    model = Model(path, len(cut[0]))
    surprise, first = [], None
    for ids in cut:
        rows = model.logprobs(ids[:-1], begin - 1)
        surprise.append(-rows[np.arange(len(rows)), ids[begin:]])
        first = rows if first is None else first
    np.savez(out, surprise=np.concatenate(surprise), first=first)


if __name__ == "__main__":
    main()
