"""A driver of two ranks, which prints their processes and waits."""

import json
import signal
import sys

from tahr import LLM
from tahr.config import EngineConfig

if __name__ == "__main__":
    llm = LLM(sys.argv[1], config=EngineConfig(tensor_parallel=2, backend="cpu", n_threads=2, context_size=64))
    print(json.dumps(llm.engine.executor.group.pids), flush=True)  # type: ignore[attr-defined]
    signal.pause()
