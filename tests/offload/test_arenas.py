"""Plans for matrices of all shapes: what ops read at once has room, within the budget."""

import random

import pytest

from tahr.errors import LoadError
from tahr.offload.homes import Panels, SlotArena, TensorSize
from tahr.offload.plan import Group, PagedPlan, plan_paging
from tahr.offload.policy import OffloadPolicy

KIB = 1 << 10
Sizes = dict[str, TensorSize]


def matrix(n_panels: int, panel_bytes: int, n_pieces: int = 0) -> TensorSize:
    """One, or a stack of some."""
    panels = Panels(n_pieces or 1, n_panels, panel_bytes, is_stack=n_pieces > 0)
    return TensorSize("Q8_0", panels.n_pieces * n_panels * panel_bytes, panels=panels)


def head_with_many_panels() -> Sizes:
    layers = {f"model.layers.{i}.mlp.up_proj.weight": matrix(20, 64 * KIB) for i in range(40)}
    return layers | {"lm_head.weight": matrix(1024, 64 * KIB)}


def with_experts() -> Sizes:
    experts = {f"model.layers.{i}.mlp.experts.up_proj.weight": matrix(7, 48 * KIB, 16) for i in range(40)}
    return head_with_many_panels() | experts


def any_shapes(seed: int) -> Sizes:
    rng = random.Random(seed)
    sizes = {"lm_head.weight": matrix(rng.randint(1, 2000), rng.randint(1, 64) * KIB)}
    shapes = [(rng.randint(1, 90), rng.randint(1, 100) * KIB, rng.choice([0, 0, 8])) for _ in range(4)]
    for layer in range(rng.randint(2, 30)):
        for part, shape in enumerate(shapes):
            sizes[f"model.layers.{layer}.part{part}.weight"] = matrix(*shape)
    tower = matrix(rng.randint(1, 90), rng.randint(1, 20) * KIB)
    return sizes | {f"vision.layers.{i}.self_attn.{part}_proj.weight": tower for i in range(3) for part in "qkv"}


CASES = {"head": head_with_many_panels(), "experts": with_experts()} | {str(i): any_shapes(i) for i in range(30)}


def paged_by(plan: PagedPlan, sizes: Sizes, arena: SlotArena) -> Group:
    """What shares an arena, in its slots."""
    own = {name: size for name, size in sizes.items() if size.panels and size.panels.is_stack == arena.by_usage}
    return Group({name: own[name] for name in plan.homes if name in own}, arena.by_usage, arena.slot_bytes)


def n_slots_of(size: TensorSize, slot_bytes: int) -> int:
    assert size.panels
    return size.panels.n_pieces * size.panels.slots_each(slot_bytes)


@pytest.mark.parametrize("name", CASES)
def test_ops_find_room_within_every_budget(name: str) -> None:
    sizes = CASES[name]
    total = sum(size.n_bytes for size in sizes.values())
    n_plans = 0
    for budget in range(total // 50, total, total // 50):
        try:
            plan = plan_paging(sizes, budget, OffloadPolicy.none(), 40)
        except LoadError:
            assert n_plans == 0, "a larger budget is enough where a smaller one was"
            continue
        n_plans += 1
        resident = sum(size.n_bytes for name, size in sizes.items() if name not in plan.homes)
        assert resident + sum(arena.n_bytes + arena.read_bytes for arena in plan.arenas) <= budget
        for arena in plan.arenas:
            assert arena.n_slots >= paged_by(plan, sizes, arena).least_slots()
    assert n_plans > 0


def test_matrices_beside_each_other_in_a_tower_are_read_at_once() -> None:
    sizes = {f"vision.layers.0.self_attn.{part}_proj.weight": matrix(10, 64 * KIB) for part in "qkv"}
    group = Group.of(sizes, by_usage=False)
    assert group.least_slots() == sum(n_slots_of(size, group.slot_bytes) for size in sizes.values())


def test_an_arena_with_too_little_memory_is_refused() -> None:
    group = Group.of(head_with_many_panels(), by_usage=False)
    assert group.arena(group.least_bytes(), OffloadPolicy.none()).n_slots == group.least_slots()
    with pytest.raises(LoadError, match=r"slots of paged weights at a time.* raise the ram_budget"):
        group.arena(group.least_bytes() - 1, OffloadPolicy.none())
