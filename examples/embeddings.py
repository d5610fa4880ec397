"""Find the text that is closest to a question. Usage: python examples/embeddings.py [MODEL]"""

import sys

from tahr import LLM

TEXTS = ["The dog ran after the ball.", "It rained all day long.", "A puppy likes to play."]
QUESTION = "Which text is about dogs?"

with LLM(*sys.argv[1:2]) as llm:
    texts = llm.embed(TEXTS, pooling="mean")
    question = llm.embed(QUESTION, pooling="mean")
    for likeness, text in sorted(zip((texts @ question).tolist(), TEXTS, strict=True), reverse=True):
        print(f"{likeness:.3f}  {text}")

    # A language model also says how likely one text is after another.
    for word, score in zip(["dog", "moon"], llm.score("The animal that barks is a", [" dog", " moon"]), strict=True):
        print(f"{word}: {score.logprob_sum:.2f}")
