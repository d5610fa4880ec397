"""Images are counted for as long as they are there, and no longer."""

import numpy as np
import pytest

from tahr.engine.sequences.prompt_rows import RowSource
from tahr.errors import ImagesBusy
from tahr.generation.kept_images import KeptImages

N = 4 * 25


def image() -> RowSource:
    return RowSource(np.zeros((5, 5), np.float32))


def test_images_count_until_nobody_has_them() -> None:
    kept = KeptImages(2 * N)
    first = image()
    second = image()
    assert kept.keep(first, 0) == kept.keep(second, 0) == N
    third = image()
    with pytest.raises(ImagesBusy, match="try again in a moment"):
        kept.keep(third, 0)
    assert kept.n_used == 2 * N
    del first
    assert kept.n_used == N and kept.keep(third, 0) == N
    del second, third
    assert kept.n_used == 0


def test_a_request_that_is_alone_may_have_more_than_all() -> None:
    kept = KeptImages(N)
    own = [image() for _ in range(4)]
    n_own = 0
    for each in own:
        n_own += kept.keep(each, n_own)
    assert kept.n_used == n_own == 4 * N
    with pytest.raises(ImagesBusy):
        kept.keep(image(), 0)


def test_of_two_that_exceed_the_limit_together_one_goes_on() -> None:
    kept = KeptImages(2 * N)
    one = [image()]
    other = image()
    kept.keep(one[0], 0)
    kept.keep(other, 0)
    with pytest.raises(ImagesBusy):
        kept.keep(image(), N)
    one.clear()
    more = image()
    assert kept.keep(more, N) == N
