"""Layers that keep a state of fixed size: slots on every backend, and a toy family that is served from them."""

from itertools import pairwise

import numpy as np
import pytest

from backends_here import AND_PLAIN, backend, kv_store
from model_cases import token_ids
from model_runs import Runs
from tahr.backends.api import NULL_SLOT, Backend, KVShape, StateShape
from toy_state_space import ToyBackend, toy

SHAPES = [StateShape((3, 4)), KVShape(1, 32), StateShape((5,))]
N_SLOTS = 4
TOLERANCE = 1e-5
IDS = [i % 64 for i in token_ids()]
OTHER = list(reversed(IDS))


# ---- slots on every backend -----------------------------------------------------------------------------------


@pytest.fixture(params=AND_PLAIN)
def be(request: pytest.FixtureRequest) -> Backend:
    return backend(request.param)


def random_states(n_slots: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = (shape.shape for shape in SHAPES if isinstance(shape, StateShape))
    return [rng.standard_normal((n_slots, *shape)).astype(np.float32) for shape in shapes]


def test_states_lie_beside_pages_and_are_counted(be: Backend) -> None:
    kv = kv_store(be, SHAPES, [2], 8, be.kv_dtypes[0], n_slots=N_SLOTS)
    assert kv.group_of == (-1, 0, -1)
    assert kv.n_bytes == N_SLOTS * 4 * (12 + 5) + 2 * 8 * SHAPES[1].token_bytes(be.kv_dtypes[0])  # type: ignore[union-attr]
    assert [layer.shape for layer in be.read_states(kv, [1, 2])] == [(2, 3, 4), (2, 5)]
    assert len(be.read_pages(kv, [0])) == 1


def test_what_is_written_to_slots_is_read(be: Backend) -> None:
    kv, content = kv_store(be, SHAPES, [1], 8, be.kv_dtypes[0], n_slots=N_SLOTS), random_states(2, seed=1)
    be.write_states(kv, [3, 1], content)
    for found, expected in zip(be.read_states(kv, [3, 1]), content, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not any(layer.any() for layer in be.read_states(kv, [NULL_SLOT, 2])), "another slot has changed"


def test_copies_of_states_are_read_before_they_are_written(be: Backend) -> None:
    kv, content = kv_store(be, SHAPES, [1], 8, be.kv_dtypes[0], n_slots=N_SLOTS), random_states(4, seed=2)
    be.write_states(kv, range(4), content)
    be.copy_states(kv, [(1, 2), (2, 1), (1, 3)])
    for found, expected in zip(be.read_states(kv, range(4)), content, strict=True):
        np.testing.assert_array_equal(found, expected[[0, 2, 1, 1]])


# ---- the toy family, step by step -----------------------------------------------------------------------------


@pytest.fixture(params=["states", "hybrid"])
def runs(request: pytest.FixtureRequest) -> Runs:
    be = ToyBackend()
    return Runs(toy(be, hybrid=request.param == "hybrid"), be, n_seqs=2)


def one_shot(runs: Runs, ids: list[int]) -> np.ndarray:
    return runs.eager([(0, ids)])


def test_a_text_in_pieces_is_the_text(runs: Runs) -> None:
    wanted = one_shot(runs, IDS)
    for cuts in [(1, 2, 3), (7,), (5, 6, 20)]:
        edges = [0, *cuts, len(IDS)]
        got = [runs.eager([(a, IDS[a:b])]) for a, b in pairwise(edges)]
        np.testing.assert_allclose(np.concatenate(got), wanted, rtol=0, atol=TOLERANCE)


def test_sequences_of_a_batch_keep_to_their_slots(runs: Runs) -> None:
    wanted = [one_shot(runs, IDS[:12]), one_shot(runs, OTHER[:9])]
    first = runs.eager([(0, IDS[:7]), (0, OTHER[:8])])
    second = runs.eager([(7, IDS[7:12]), (8, OTHER[8:9])])
    np.testing.assert_allclose(np.concatenate([first[:7], second[:5]]), wanted[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(np.concatenate([first[7:], second[5:]]), wanted[1], rtol=0, atol=TOLERANCE)


def test_a_new_text_starts_from_zeros_in_a_used_slot(runs: Runs) -> None:
    wanted = one_shot(runs, IDS)
    one_shot(runs, OTHER)
    np.testing.assert_array_equal(one_shot(runs, IDS), wanted)


def test_recording_leaves_states_and_pages_alone(runs: Runs) -> None:
    """Running a step twice, as KV pages allow, would add its tokens to a state twice."""
    wanted = one_shot(runs, IDS[:10])[9:]
    one_shot(runs, IDS[:9])
    step = runs.backend.step_inputs(runs.limits)
    runs.fill(step, [(9, IDS[9:10])])
    plan = runs.backend.record(lambda: runs.decoder.forward(runs.backend, step, runs.kv), step)
    plan.run()
    np.testing.assert_allclose(runs.backend.read(plan.result), wanted, rtol=0, atol=TOLERANCE)


def test_a_copied_state_goes_its_own_way(runs: Runs) -> None:
    wanted = one_shot(runs, [*IDS[:8], *OTHER[:3]])[8:]
    runs.eager([(0, IDS[:8]), (0, OTHER[:1])])
    runs.backend.copy_states(runs.kv, [(1, 2)])
    for group, pages in enumerate(runs.pages(0)):
        runs.backend.copy_pages(runs.kv, list(zip(pages, runs.pages(1)[group], strict=True)), group)
    runs.eager([(8, IDS[8:20])])  # the first goes on, the copy does not notice
    got = runs.eager([(20, IDS[20:21]), (8, OTHER[:3])])
    np.testing.assert_allclose(got[1:], wanted, rtol=0, atol=TOLERANCE)
