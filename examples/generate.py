"""Continue several texts at once: they share every step of the model. Usage: python examples/generate.py [MODEL]"""

import sys

from tahr import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The capital of France is", "One day, a little goat"]

with LLM(*sys.argv[1:2]) as llm:
    for prompt, reply in zip(PROMPTS, llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=20)), strict=True):
        print(f"{prompt}|{reply.text}")
        print(f"  {reply.finish_reason}, {reply.stats.tokens_per_s:.0f} tokens/s")
