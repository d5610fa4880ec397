"""Put a half-told story aside and go on with it later. Usage: python examples/snapshot.py [MODEL]"""

import sys
import tempfile
from pathlib import Path

from tahr import InferenceEngine
from tahr.hub import DEFAULT_MODEL

engine = InferenceEngine.from_hub(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL, context_size=512)
engine.load_model()
story = engine.tokenize("Once upon a time there was a goat who")
engine.prefill(story[:-1])

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "story.tahr"
    file.write_bytes(engine.snapshot())
    print(f"{file.stat().st_size} bytes, {len(InferenceEngine.snapshot_info(file.read_bytes()).tokens)} tokens")
    resumed = InferenceEngine.resume(file.read_bytes())  # in another process as well

logits = resumed.forward_one(story[-1])
print(resumed.generate_with_logits(story, logits, max_tokens=20))
