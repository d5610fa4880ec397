"""Computes the logits that the tests of drafters expect, with the speculators library; run by hand for a new case.

Usage: python scripts/make_drafter_fixtures.py, in an environment with `pip install speculators==0.9.0 gguf`
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures" / "drafters"
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

from drafter_files import CASES, N_CHAINED, draft_map, inputs_of, make_arrays  # noqa: E402


def expected_logits(case: str) -> np.ndarray:
    """Logits of every entry by the number of entries before it that read rows of the drafter's own."""
    import torch
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    given = CASES[case]
    config = Eagle3SpeculatorConfig(**given)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config).eval()
    weights = {name: torch.from_numpy(values) for name, values in make_arrays(given).items()}
    missing, unknown = model.load_state_dict(weights, strict=False)
    left = {name for name in missing if not name.startswith("verifier_")}
    assert not unknown and left <= {"d2t", "t2d"}, (left, unknown)
    if model.d2t is not None:
        model.d2t.copy_(torch.from_numpy(draft_map(given)))
    found: list[np.ndarray] = []
    model.lm_head.register_forward_hook(lambda module, args, out: found.append(out[0].detach().numpy().copy()))
    ids, rows = inputs_of(given)
    documents = torch.zeros(1, len(ids), dtype=torch.long)
    with torch.no_grad():
        model(torch.from_numpy(rows)[None], torch.tensor([ids]), documents, ttt_steps=1 + N_CHAINED)
    assert len(found) == 1 + N_CHAINED
    return np.stack(found)


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    for case in CASES:
        np.savez_compressed(FIXTURES / f"{case}.npz", logits=expected_logits(case).astype(np.float32))
        print(case)


if __name__ == "__main__":
    main()
