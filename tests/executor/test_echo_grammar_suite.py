"""The suite of grammars with executors that are given bytes."""

import test_grammar
from echo_suites import again, through_bytes

__all__ = ["through_bytes"]
KEPT = ("test_free_requests_are_the_same_beside_constrained_ones", "test_steps_overlap_with_grammars_too")

globals().update(again(test_grammar, KEPT))
