"""Hopper's own kernel of prompts, in steps with prompts that go on and sequences that decode, beside torch in f32."""

from types import SimpleNamespace
from typing import Any

import pytest

import backends_here
from tahr.backends.api import AttentionSpec

PAGE, N_PADDING = 16, 37
FRESH = [(0, 128), (0, 127), (0, 129), (0, 700)]  # positions computed; 128 tokens is the least the kernel takes
OTHERS = [(50, 300), (9, 10), (0, 1), (128, 400)]


def on_hopper() -> bool:
    if "cuda" not in backends_here.NAMES:
        return False
    import torch

    from tahr.backends.cuda.kernels.common.card import has_warp_groups

    return torch.cuda.is_available() and has_warp_groups(torch.device("cuda"))


pytestmark = pytest.mark.skipif(not on_hopper(), reason="needs a Hopper card")


class Step:
    """Random queries, keys and values of a step; rows of padding hold NaN, pages lie in any order."""

    def __init__(self, spans: list[tuple[int, int]], heads: tuple[int, int], dim: int, dtype: Any):
        import torch

        from tahr.backends.cuda.kernels.attention import AttentionCall, StepRows

        torch.manual_seed(len(spans) * dim)
        self.spans, (self.n_q, self.n_kv), self.dim = spans, heads, dim
        lengths, n_pages = [end - begin for begin, end in spans], [-(-end // PAGE) for _, end in spans]
        self.starts = [sum(lengths[:s]) for s in range(len(spans) + 1)]
        n_rows = self.starts[-1] + N_PADDING
        joined = torch.full((n_rows, (self.n_q + 2 * self.n_kv) * dim), float("nan"), dtype=dtype, device="cuda")
        joined[:-N_PADDING] = torch.randn(n_rows - N_PADDING, joined.shape[1], device="cuda")
        q, k, v = joined.split([self.n_q * dim, self.n_kv * dim, self.n_kv * dim], 1)
        self.q, self.new = q.contiguous(), StepRows(k.contiguous(), v)
        self.store = torch.randn(2, sum(n_pages), self.n_kv, PAGE, dim, device="cuda").to(dtype)
        self.tables = torch.zeros(len(spans), max(n_pages), dtype=torch.int32, device="cuda")
        order = torch.randperm(sum(n_pages), dtype=torch.int32, device="cuda")
        for s, n in enumerate(n_pages):
            self.tables[s, :n], order = order[:n], order[n:]
        self.write_new()
        positions = [at for begin, end in spans for at in range(begin, end)] + [0] * N_PADDING
        numbers = {"query_start": self.starts, "positions": positions, "seq_lens": [end for _, end in spans],
                   "counts": [self.starts[-1], 1, len(spans), 0], "order": range(len(spans))}  # fmt: skip
        there = {name: torch.tensor(list(given), dtype=torch.int32, device="cuda") for name, given in numbers.items()}
        spec = AttentionSpec(dim**-0.5)
        lengths = there.pop("seq_lens")
        self.call = AttentionCall(self.q, self.store, self.tables, SimpleNamespace(**there), spec, dtype, lengths)

    def slots(self, s: int) -> tuple[Any, Any]:
        """Pages and places in them of the keys of a sequence."""
        import torch

        at = torch.arange(self.spans[s][1], device="cuda")
        return self.tables[s][at // PAGE].long(), at % PAGE

    def write_new(self) -> None:
        for s, (begin, _) in enumerate(self.spans):
            (pages, places), rows = self.slots(s), slice(self.starts[s], self.starts[s + 1])
            for side, new in enumerate(self.new):
                self.store[side, pages[begin:], :, places[begin:]] = new[rows].reshape(-1, self.n_kv, self.dim)

    def wanted(self, s: int) -> Any:
        """Attention of the sequence's rows in f32."""
        import torch

        (begin, end), (pages, places) = self.spans[s], self.slots(s)
        q = self.q[self.starts[s] : self.starts[s + 1]].float().view(-1, self.n_q, self.dim).transpose(0, 1)
        k, v = (side[pages, :, places].float().transpose(0, 1) for side in self.store)
        seen = torch.arange(end, device="cuda")[None, :] <= torch.arange(begin, end, device="cuda")[:, None]
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return found.transpose(0, 1).reshape(end - begin, -1)

    def check(self, sequences: list[int]) -> Any:
        """What the step gives; for these sequences it is what torch finds, and rows of padding are zero."""
        from tahr.backends.cuda.kernels import attention

        out = attention.attend_mixed(self.call, len(self.spans), self.new)
        for s in sequences:
            want, have = self.wanted(s), out[self.starts[s] : self.starts[s + 1]].float()
            assert (have - want).norm() <= 6e-3 * want.norm(), f"sequence {s}, positions {self.spans[s]}"
        assert not out[-N_PADDING:].any()
        return out


@pytest.mark.parametrize(
    ("dtype", "dim", "heads"),
    [("bfloat16", 128, (8, 2)), ("float16", 128, (9, 3)), ("bfloat16", 64, (2, 2)), ("float16", 64, (24, 2))],
)
def test_prompts_beside_other_sequences(dtype: str, dim: int, heads: tuple[int, int]) -> None:
    import torch

    from tahr.backends.cuda.kernels.attention import takes_prompts

    step = Step([*FRESH, *OTHERS], heads, dim, getattr(torch, dtype))
    assert takes_prompts(step.call, step.new)
    step.check(list(range(len(step.spans))))


@pytest.mark.parametrize("n", [3900, 8192])
def test_long_prompts(n: int) -> None:
    """The same bits each time: tools that look for races do not follow barriers of single warps."""
    import torch

    step = Step([(0, n)], (8, 2), 128, torch.bfloat16)
    first = step.check([0])
    for _ in range(100):
        assert torch.equal(step.check([]), first)


def test_nothing_of_another_sequence_is_taken_up() -> None:
    """Tiles that reach behind a prompt would multiply the values of the next one with zero: NaN stays NaN."""
    import torch

    step = Step([(0, 200), (0, 300), (0, 150), (40, 60)], (8, 2), 128, torch.bfloat16)
    for s in (1, 3):
        step.new.values[step.starts[s] : step.starts[s + 1]] = float("nan")
    step.write_new()
    out = step.check([0, 2])
    assert out[step.starts[1] : step.starts[2]].isnan().all()


def test_many_prompts_at_once() -> None:
    import torch

    generator = torch.Generator().manual_seed(3)
    spans = [(0, int(n)) for n in torch.randint(1, 600, (40,), generator=generator)]
    Step(spans, (8, 2), 128, torch.bfloat16).check(list(range(len(spans))))
