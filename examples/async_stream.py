"""Many replies at once from one loop, one of them given up early. Usage: python examples/async_stream.py [MODEL]"""

import asyncio
import sys

from tahr import AsyncLLM, SamplingParams

PROMPTS = ["Once upon a time", "One day, a little goat", "The sun was"]


async def tell(llm: AsyncLLM, prompt: str) -> str:
    text = prompt
    async for chunk in llm.stream(prompt, SamplingParams(temperature=0, max_tokens=40)):
        text += chunk.text
    return text


async def first_words(llm: AsyncLLM, prompt: str, n_chunks: int) -> str:
    text = prompt
    async for chunk in llm.stream(prompt, SamplingParams(temperature=0, max_tokens=1000)):
        text += chunk.text
        n_chunks -= 1
        if not n_chunks:
            break  # leaving the loop stops the request and frees its memory
    return text


async def main() -> None:
    async with AsyncLLM(*sys.argv[1:2]) as llm:
        for text in await asyncio.gather(*(tell(llm, p) for p in PROMPTS), first_words(llm, "Lily and", 5)):
            print(text, "\n")
        print(llm.stats())


asyncio.run(main())
