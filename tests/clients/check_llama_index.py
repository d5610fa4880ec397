"""llama-index against a running server: a completion, a chat, and both streamed."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

BASE = sys.argv[1] + "/v1"
MODEL = sys.argv[2]
OPTIONS = {"api_base": BASE, "api_key": "none", "temperature": 0, "max_tokens": 24, "max_retries": 0, "timeout": 120}
QUESTION = [ChatMessage(role="user", content="What is gravity?")]

plain = OpenAILike(model=MODEL, is_chat_model=False, **OPTIONS)
whole = plain.complete("One, two, three,").text
assert "four" in whole, whole
assert "".join(part.delta or "" for part in plain.stream_complete("One, two, three,")) == whole

chatty = OpenAILike(model=MODEL, is_chat_model=True, **OPTIONS)
answer = chatty.chat(QUESTION).message.content
assert "ravity" in answer, answer
parts = [part.delta or "" for part in chatty.stream_chat(QUESTION)]
assert len(parts) > 2 and "".join(parts) == answer, parts
