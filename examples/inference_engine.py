"""Every step in your own hands: prefill, look at logits, go back, reuse what was computed.

Usage: python examples/inference_engine.py [MODEL]
"""

import sys

from tahr import InferenceEngine, PrefixStore
from tahr.hub import DEFAULT_MODEL

engine = InferenceEngine.from_hub(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL, context_size=512)
engine.load_model()

print(engine.generate("Once upon a time", max_tokens=20, callback=lambda piece: print(piece, end="|")))

# The likeliest next tokens after a prompt, and after another ending of it.
prompt = engine.tokenize("The little goat was very")
engine.truncate(0)
logits = engine.forward_prefill(prompt, pos_start=0)
print("very ...", [engine.decode_token(int(token)) for token in logits.argsort()[::-1][:5]])
engine.truncate(len(prompt) - 1)
print("was  ...", [engine.decode_token(int(token)) for token in engine.forward_one(prompt[-2]).argsort()[::-1][:5]])

# A beginning that many prompts share is computed once.
cache = PrefixStore()
engine.truncate(0)
engine.prefill(prompt)
engine.store_kv_in_prefix_cache(prompt, cache)
longer = engine.tokenize("The little goat was very hungry and")
found = cache.lookup(longer)
if found:
    copy, n_known = found
    logits = engine.prime_with_prefix(copy, n_known, longer[n_known:])
    print(engine.generate_with_logits(longer, logits, max_tokens=10))
print(engine.metrics_snapshot())
