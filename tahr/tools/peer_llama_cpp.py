"""Times llama.cpp through the module `llama_cpp`. A program of its own: it may run in a Python that has no Tahr.

usage: peer_llama_cpp.py MODEL.gguf N_THREADS N_CONTEXT N_BATCH N_SEQUENCES
Says {"version": ...} once the model is loaded; then each line of JSON on stdin is a shape, and is answered with
{"seconds": ...} or {"error": ...}.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any


class LlamaModel:
    """A loaded model; fed with made-up tokens like llama-bench, nothing sampled."""

    def __init__(self, path: str, n_threads: int, n_context: int, n_batch: int, n_seqs: int):
        self.lc: Any = import_module("llama_cpp")
        self.lc.llama_backend_init()
        model = self.lc.llama_model_load_from_file(path.encode(), self.lc.llama_model_default_params())
        if not model:
            raise RuntimeError("llama.cpp cannot load the model")
        params = self.lc.llama_context_default_params()
        params.n_ctx = n_context * n_seqs
        params.n_batch = n_batch
        params.n_ubatch = n_batch
        params.n_seq_max = n_seqs
        params.n_threads = params.n_threads_batch = n_threads
        self.context = self.lc.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot make a context of {n_context * n_seqs} tokens")
        self.memory = self.lc.llama_get_memory(self.context)
        self.n_vocab = self.lc.llama_vocab_n_tokens(self.lc.llama_model_get_vocab(model))
        self.n_batch = n_batch
        self.n_seqs = n_seqs
        self.n_stored = [0] * n_seqs  # tokens of each sequence that need not be read again

    def time(self, n_prompt: int, n_gen: int, n_depth: int, n_seqs: int) -> float:
        """The seconds of one repetition; the depth is read, and batches are filled, before the clock starts."""
        for sequence in range(self.n_seqs):
            self.rewind(sequence, n_depth if sequence < n_seqs else 0)
        batches = [batch for sequence in range(n_seqs) for batch in self.reading(sequence, n_depth, n_prompt)]
        start = n_depth + n_prompt
        batches += [self.batch([(s, start + i, True) for s in range(n_seqs)]) for i in range(n_gen)]
        begin = time.perf_counter()
        self.run(batches)
        seconds = time.perf_counter() - begin
        self.n_stored = [n_depth] * n_seqs + [0] * (self.n_seqs - n_seqs)
        return seconds

    def rewind(self, sequence: int, n_depth: int) -> None:
        """Go back to the first `n_depth` tokens; computed ones are kept, if this kind of memory can."""
        keep = min(n_depth, self.n_stored[sequence])
        if not self.lc.llama_memory_seq_rm(self.memory, sequence, keep, -1):
            self.lc.llama_memory_seq_rm(self.memory, sequence, -1, -1)
            keep = 0
        self.run(self.reading(sequence, keep, n_depth - keep))

    def reading(self, sequence: int, start: int, n_tokens: int) -> list[Any]:
        found = []
        for begin in range(0, n_tokens, self.n_batch):
            end = min(begin + self.n_batch, n_tokens)
            found.append(self.batch([(sequence, start + i, i == n_tokens - 1) for i in range(begin, end)]))
        return found

    def batch(self, tokens: list[tuple[int, int, bool]]) -> Any:
        """One step over (sequence, position, whether its logits are wanted)."""
        batch = self.lc.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, (sequence, position, wanted) in enumerate(tokens):
            batch.token[i] = (position * 7919 + sequence * 104729) % self.n_vocab
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.logits[i] = wanted
            batch.seq_id[i][0] = sequence
        return batch

    def run(self, batches: list[Any]) -> None:
        for batch in batches:
            failed = self.lc.llama_decode(self.context, batch)
            self.lc.llama_synchronize(self.context)
            self.lc.llama_batch_free(batch)
            if failed:
                raise RuntimeError(f"llama_decode failed with {failed}")


def answers(peer: LlamaModel) -> Iterator[dict[str, Any]]:
    yield {"version": f"llama_cpp {peer.lc.__version__}"}
    for line in sys.stdin:
        try:
            yield {"seconds": peer.time(**json.loads(line))}
        except RuntimeError as error:
            peer.n_stored = [0] * peer.n_seqs
            yield {"error": str(error)}


def main() -> None:
    path, *numbers = sys.argv[1:]
    # llama.cpp writes its log where it likes; answers go to the stdout we were given, the rest to stderr.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for answer in answers(LlamaModel(path, *map(int, numbers))):
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
