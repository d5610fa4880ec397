"""Hold a conversation. Usage: python examples/chat.py [MODEL]"""

import sys

from tahr import LLM, SamplingParams

QUESTIONS = ["Name one animal that lives in the mountains.", "What does it eat?"]

with LLM(*sys.argv[1:2]) as llm:
    messages = [{"role": "system", "content": "Answer in one short sentence."}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        reply = llm.chat(messages, SamplingParams(temperature=0, max_tokens=60))
        messages.append({"role": "assistant", "content": reply.text})
        print(f"> {question}\n{reply.text}\n")
