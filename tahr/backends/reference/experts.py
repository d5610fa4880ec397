"""Choice of experts, and the sum of their results."""

import numpy as np

from tahr.backends.api import ExpertMLPs, Floats, Routing
from tahr.backends.reference.arithmetic import F32, activate, multiply_by_one, sigmoid, softmax

Share = tuple[int, np.float32]  # an expert, and the factor on its result


def run_expert(x: Floats, mlps: ExpertMLPs, expert: int) -> Floats:
    """The MLP of one expert for one row."""
    gate = multiply_by_one(x, mlps.gate, expert)
    up = multiply_by_one(x, mlps.up, expert)
    inner = activate(gate, up, mlps.act)
    return multiply_by_one(inner, mlps.down, expert)


def run_experts(x: Floats, scores: Floats, mlps: ExpertMLPs) -> Floats:
    """The results of each row's experts, weighted by their shares and added, best first."""
    out = np.zeros((len(x), mlps.down.weight.n_rows), F32)
    scales_input = mlps.routing.scales_input
    for row, row_scores in enumerate(scores):
        for expert, share in route(row_scores, mlps.routing):
            before = share if scales_input else F32(1)
            after = 1 if scales_input else share
            result = run_expert(x[row : row + 1] * before, mlps, expert)
            out[row] += after * result[0]
    return out


def route(scores: Floats, routing: Routing) -> list[Share]:
    """The experts of a row, best first."""
    if routing.jitter:
        return route_sparsely(scores, routing)
    p: Floats = sigmoid(scores) if routing.sigmoid else softmax(scores)
    worth = p if routing.bias is None else p + routing.bias.data
    if routing.n_groups:
        worth = in_best_groups(worth, routing)
    order = np.argsort(-worth, kind="stable")
    best = order[: routing.n_active]
    total = p[best].sum() if routing.renormalise else F32(1)
    shares = p[best] / total * F32(routing.scale)
    if routing.factors:
        shares = shares * routing.factors.data[best]
    return list(zip(best.tolist(), shares, strict=True))


def route_sparsely(scores: Floats, routing: Routing) -> list[Share]:
    """Experts chosen one after the other, each with its share among those that are nearly as good."""
    left = scores.copy()
    limit = F32(2 * routing.jitter)
    found = []
    for _ in range(routing.n_active):
        best = int(left.argmax())
        largest = np.maximum(np.abs(scores), left[best])
        near = (left[best] - scores) / largest <= limit
        rivals = np.where(near, left, -np.inf)
        total = np.exp(rivals - left[best]).sum()
        found.append((best, F32(1) / total))
        left[best] = -np.inf
    return found


def in_best_groups(scores: Floats, routing: Routing) -> Floats:
    """The scores, with -inf for experts outside the best groups."""
    groups = scores.reshape(routing.n_groups, -1)
    ordered = np.sort(groups, axis=1)
    worth = ordered[:, -routing.group_top :].sum(axis=1)
    order = np.argsort(-worth, kind="stable")
    best = order[: routing.n_best_groups]
    kept = np.full_like(groups, -np.inf)
    kept[best] = groups[best]
    return kept.reshape(-1)
