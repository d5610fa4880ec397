"""langchain-openai against a running server: a chat, whole, streamed and batched, and embeddings."""

import sys

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

BASE = sys.argv[1] + "/v1"
MODEL = sys.argv[2]
QUESTION = [("system", "Be brief."), ("human", "What is gravity?")]

chat = ChatOpenAI(model=MODEL, base_url=BASE, api_key="none", temperature=0, max_tokens=24, max_retries=0, timeout=120)
whole = chat.invoke(QUESTION)
assert "ravity" in whole.content, whole
assert whole.usage_metadata["output_tokens"] > 0, whole.usage_metadata
parts = list(chat.stream(QUESTION))
assert len(parts) > 2 and "".join(part.content for part in parts) == whole.content, parts
assert [made.content for made in chat.batch([QUESTION, QUESTION])] == [whole.content] * 2
# The tokenizer this class would use by itself is OpenAI's; the server has its own.
vectors = OpenAIEmbeddings(model=MODEL, base_url=BASE, api_key="none", check_embedding_ctx_length=False)
assert len(vectors.embed_documents(["a goat", "a boat"])) == 2
