"""Adapters that PEFT itself makes and saves give what PEFT computes with them (`make parity`)."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parity needs torch: run `make parity`")
transformers = pytest.importorskip("transformers", reason="parity needs transformers: run `make parity`")
peft = pytest.importorskip("peft", reason="parity needs peft: run `make parity`")

from lora_runs import logits, target_of  # noqa: E402
from model_cases import CASES, FAMILY_CASES, make_weights, token_ids  # noqa: E402
from model_files import write_hf  # noqa: E402
from tahr.backends.reference.backend import ReferenceBackend  # noqa: E402
from tahr.models.loader import load, open_model  # noqa: E402
from tahr.models.lora import open_adapter  # noqa: E402
from tahr.models.lora.adapter import ADAPTED  # noqa: E402

OPTIONS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"q_proj": 8}, "alpha_pattern": {"model.layers.1.self_attn.v_proj": 1}},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("case", FAMILY_CASES)
def test_what_peft_saves_is_what_tahr_adds(case: str, options: str, tmp_path: Path) -> None:
    written = write_hf(tmp_path / "base", CASES[case], make_weights(CASES[case]))
    backend = ReferenceBackend()
    loaded = load(open_model([], written), backend)
    if loaded.config.family not in ADAPTED:
        pytest.skip("the family refuses adapters")
    if CASES[case]["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip("transformers has the family only as code of its repository")
    model = transformers.AutoModelForCausalLM.from_pretrained(written, dtype=torch.float32, attn_implementation="eager")
    # PEFT turns experts into parameters of their own, which Tahr refuses.
    modules = ["q_proj", "k_proj", "v_proj", "o_proj"] if loaded.config.moe else "all-linear"
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=modules, init_lora_weights=False, task_type="CAUSAL_LM",
        **deepcopy(OPTIONS[options]),  # PEFT changes them
    )  # fmt: skip
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        live = adapted(torch.tensor([token_ids()])).logits[0].numpy()
    adapted.save_pretrained(tmp_path / "adapter")
    adapter = open_adapter(tmp_path / "adapter", target_of(loaded))
    assert np.abs(live - logits(loaded, backend)).max() > 1e-2
    assert np.abs(live - logits(loaded, backend, adapter)).max() <= 1e-4
