"""Steps in flight with executors that are given bytes: the whole suite, and random traffic."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import test_late_engine
from echo_suites import again, through_bytes
from tiers import examples

__all__ = ["through_bytes"]
random_traffic: Any = test_late_engine.test_random_traffic

globals().update(again(test_late_engine))


@settings(max_examples=examples(60), deadline=None)  # 20 in the short tier
@given(data=st.data())
def test_random_traffic(stories: Any, wanted: Any, data: st.DataObject) -> None:
    random_traffic.hypothesis.inner_test(stories, wanted, data)
