"""Show a reply while it is made, and stop it early. Usage: python examples/stream.py [MODEL]"""

import sys
from contextlib import closing

from tahr import LLM, SamplingParams

LONGEST = 200  # characters

with LLM(*sys.argv[1:2]) as llm, closing(llm.stream("Once upon a time", SamplingParams(seed=7))) as chunks:
    n_shown = 0
    for chunk in chunks:
        print(chunk.text, end="", flush=True)
        n_shown += len(chunk.text)
        if n_shown > LONGEST:
            break  # closing the stream frees what the request holds
    print()
