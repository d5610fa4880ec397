"""The equality suite with executors that are given bytes."""

import test_engine
from echo_suites import again, through_bytes

__all__ = ["through_bytes"]
KEPT = ("test_twenty_requests_share_a_pool_for_two", "test_prompt_logprobs")

globals().update(again(test_engine, KEPT))
