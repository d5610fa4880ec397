"""Every public method of the seeds by its name, the order of its arguments and their names."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lora_files import peft_tensors, write_peft
from tahr import EngineConfig, InferenceConfig, InferenceEngine, SamplingParams
from tahr.errors import ConfigError
from tahr.library.beam import BeamSearchConfig
from tahr.library.inference.prefix_store import PrefixStore

GREEDY = SamplingParams(temperature=0)
# Names of parameters in the seeds' order; ours may have more after them.
PARAMETERS = {
    "load_model": (),
    "load_model_from_bytes": ("gguf_bytes", "tokenizer_json"),
    "generate": ("prompt", "max_tokens", "callback"),
    "generate_with_config": ("prompt", "max_tokens", "sampler_config", "callback"),
    "generate_with_logits": ("prompt_tokens", "initial_logits", "max_tokens", "sampler_config", "callback"),
    "prefill": ("tokens",),
    "forward_prefill": ("tokens", "pos_start"),
    "forward_decode": ("token", "pos"),
    "forward_one": ("token",),
    "truncate": ("n_tokens",),
    "tokenize": ("text",),
    "decode_token": ("token",),
    "is_eos": ("token",),
    "vocab_bytes": (),
    "kv_cache_seq_len": (),
    "kv_snapshot": (),
    "kv_restore": ("copy",),
    "prime_with_prefix": ("cached", "restore_to", "suffix_tokens"),
    "store_kv_in_prefix_cache": ("tokens", "cache"),
    "beam_generate": ("tokens", "config", "eos_token_id"),
    "embed": ("text",),
    "embed_with": ("text", "pooling"),
    "embed_batch": ("texts",),
    "embed_batch_with": ("texts", "pooling"),
    "metrics": (),
    "metrics_snapshot": (),
    "load_lora": ("path",),
    "push_lora": ("lora", "scale"),
    "pop_lora": (),
    "clear_loras": (),
    "lora_stack": (),
    "apply_lora_stack": (),
    "apply_lora_adapters": ("lora",),
    "unapply_all_loras": (),
    "snapshot": (),
    "resume": ("data", "model_path"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_names_and_order_of_arguments(name: str) -> None:
    found = [each for each in inspect.signature(getattr(InferenceEngine, name)).parameters if each != "self"]
    assert tuple(found[: len(PARAMETERS[name])]) == PARAMETERS[name]


def test_every_method_is_called_in_that_order(stories: Path, tmp_path: Path) -> None:
    engine = InferenceEngine(InferenceConfig(str(stories)))
    engine.load_model()
    pieces: list[str] = []
    text = engine.generate("Once upon a time", 6, pieces.append)
    assert "".join(pieces) == text == engine.generate_with_config("Once upon a time", 6, GREEDY, pieces.append)
    tokens = engine.tokenize("Once upon a time")
    engine.truncate(0)
    logits = engine.forward_prefill(tokens, 0)
    assert engine.generate_with_logits(tokens, logits, 6, GREEDY, pieces.append) == text
    engine.truncate(len(tokens))
    copy, cache = engine.kv_snapshot(), PrefixStore()
    assert copy is not None
    engine.store_kv_in_prefix_cache(tokens, cache)
    again = engine.prime_with_prefix(copy, len(tokens) - 1, suffix_tokens=tokens[-1:])
    assert engine.generate_with_logits(tokens, initial_logits=again, max_tokens=6, sampler_config=GREEDY) == text
    engine.kv_restore(copy)
    step = engine.forward_decode(5, engine.kv_cache_seq_len()).copy()
    engine.kv_restore(copy)
    np.testing.assert_array_equal(engine.forward_one(5), step)
    beams = engine.beam_generate(tokens, BeamSearchConfig(beam_width=2, max_new_tokens=3), eos_token_id=2)
    assert len(beams) == 2 and all(isinstance(engine.decode_token(token), str) for token in beams[0].tokens)
    vectors = engine.embed_batch_with(["a cat", "a dog"], "mean")
    assert vectors == engine.embed_batch(["a cat", "a dog"], "mean") and vectors[0] == engine.embed_with(
        "a cat", "mean"
    )
    assert len(engine.embed("a cat")) == engine.hidden_size and not engine.is_eos(5)
    linears: Any = engine._model.engine.executor.decoder.linears
    lora = engine.load_lora(write_peft(tmp_path / "a", peft_tensors(linears, 2, seed=1), r=2))
    engine.push_lora(lora, 0.5)
    engine.apply_lora_stack()
    engine.apply_lora_adapters(lora)
    assert engine.lora_stack() == [(lora, 0.5)] and engine.pop_lora() == (lora, 0.5)
    engine.clear_loras()
    engine.unapply_all_loras()
    assert engine.metrics_snapshot().tokens_generated == engine.metrics().tokens_generated > 0
    resumed = InferenceEngine.resume(engine.snapshot(), str(stories))
    np.testing.assert_array_equal(resumed.forward_one(7), engine.forward_one(7))


def test_the_wrong_configuration_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="needs an InferenceConfig"):
        InferenceEngine(EngineConfig())  # type: ignore[arg-type]
