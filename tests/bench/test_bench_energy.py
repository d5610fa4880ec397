"""`tahr bench-serve` and the energy that a server says it has used."""

import pytest

from tahr.bench_serve.energy import Energy, energy_in
from test_bench_serve import Stub, bench, running

pytestmark = pytest.mark.serial


def test_energy_is_what_the_server_says(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Stub(measures_energy=True)) as stub:
        (report,) = bench(stub, capsys, "--concurrency", "2")
    found = report["distributions"]
    assert found["mj_per_output_token"]["mean"] == pytest.approx(3000 / 6)
    assert found["mj_per_prompt_token"]["mean"] == pytest.approx(2000 * 12 / report["prompt_tokens_per_run"][0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('tahr_energy_joules_total{model_name="a",phase="decode"} 3.5', Energy(0, 3.5, 0)),
        ('tahr_energy_joules_total{model_name="b",phase="decode"} 3.5', Energy()),
        ('tahr_energy_joules_total{model_name="a",phase="decode"} 3.5.5', Energy()),
        ('tahr_energy_joules_total{model_name="a"', Energy()),
        ("\x00" * 100 + "{" * 10_000, Energy()),
    ],
)
def test_metrics_of_other_forms_are_no_figures(text: str, expected: Energy) -> None:
    assert energy_in(text, "a") == expected
