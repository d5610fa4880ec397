"""The likeliest continuations instead of the likeliest next token. Usage: python examples/beam.py [MODEL]"""

import sys

from tahr import BeamSearchConfig, InferenceEngine
from tahr.hub import DEFAULT_MODEL

engine = InferenceEngine.from_hub(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL, context_size=512)
engine.load_model()
prompt = engine.tokenize("The cat sat on")
search = BeamSearchConfig(beam_width=4, max_new_tokens=12)
for found in engine.beam_generate(prompt, search):
    text = "".join(engine.decode_token(token) for token in found.tokens[len(prompt) :])
    print(f"{found.score(search.length_penalty):7.3f}  {text!r}")
