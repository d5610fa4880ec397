"""The suite of adapters with executors that are given bytes."""

import test_lora_engine
from echo_suites import again, through_bytes

__all__ = ["through_bytes"]
KEPT = ("test_stacks_add_up_with_their_scales", "test_preempted_chunked_and_forked_requests_keep_their_adapter")

globals().update(again(test_lora_engine, KEPT))
