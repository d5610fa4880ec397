"""`tahr bench` and `tahr compare`: arithmetic, warm-up, figures for programs, and peers real, fake or missing."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from model_cases import CASES, make_weights
from model_files import write_hf
from tahr.cli.bench.bench_gate import judge, key_of
from tahr.cli.main import main
from tahr.engine.step.in_flight import InFlight
from tahr.models.loader import open_model
from tahr.models.loader.convert import convert
from tahr.tools import environment
from tahr.tools.bench import Bench, Result, Shape
from tahr.tools.comparison import Compared, table, worst_first
from tahr.weights.formats import FORMATS
from tahr.weights.gguf_write import Entry, write_gguf
from tahr.weights.quantise.quantiser import pieces

pytestmark = pytest.mark.serial

ON = ["--backend", "reference"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 in Q8_0, written by Tahr itself."""
    folder = tmp_path_factory.mktemp("bench")
    made = convert(open_model([], write_hf(folder, CASES["qwen3"], make_weights(CASES["qwen3"]))))
    q8 = {part.name: "Q8_0" if len(part.shape) > 1 and part.shape[-1] % 32 == 0 else "F32" for part in made.parts}
    entries = [
        Entry(p.name, FORMATS[q8[p.name]], p.shape, lambda p=p: pieces(p.make(), FORMATS[q8[p.name]]))  # type: ignore[misc]
        for p in made.parts
    ]
    write_gguf(folder / "qwen3.gguf", made.metadata, entries)
    return folder / "qwen3.gguf"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


# ---- figures ------------------------------------------------------------------------------------------------


def test_tokens_are_divided_by_the_time() -> None:
    result = Result(Shape(n_prompt=100, n_gen=20, n_seqs=2, n_depth=7), (2.0, 4.0, 3.0))
    assert result.rates == [120.0, 60.0, 80.0]
    assert result.median == 80 and result.spread == pytest.approx(0.75)
    assert result.line() == "pp100+tg20 x2 @ d7: 86.7 t/s (3 reps, 60.0-120.0, spread 75.0 %)"
    record = result.record()
    assert next(iter(record)) == "avg_ts" and record["avg_ts"] == pytest.approx(260 / 3)
    assert record["samples_ns"] == [2_000_000_000, 4_000_000_000, 3_000_000_000] and record["avg_ns"] == 3_000_000_000


@pytest.mark.parametrize(
    ("shape", "label"),
    [(Shape(n_prompt=512), "pp512"), (Shape(n_gen=64, n_seqs=8), "tg64 x8"), (Shape(n_gen=4, n_depth=9), "tg4 @ d9")],
)
def test_labels(shape: Shape, label: str) -> None:
    assert shape.label == label


def test_the_first_run_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 1.0, 2.0])
    monkeypatch.setattr(Bench, "time", lambda self, shape: next(times))
    assert Bench.measure(object.__new__(Bench), Shape(n_gen=1), 2).seconds == (1.0, 2.0)


def test_a_shape_is_run_as_it_says(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth once, prompts in chunks and one after another, generation together; a second run reads no depth again."""
    from tahr.config import EngineConfig
    from tahr.tools.bench import open_bench

    shape = Shape(n_prompt=5, n_gen=2, n_depth=3, n_seqs=2)
    bench = open_bench(str(model), EngineConfig(backend="reference", prefill_chunk_size=4), [shape]).bench
    steps: list[list[tuple[int, int, int]]] = []
    launch = bench.engine.steps.launch

    def watched(step: InFlight, *rest: object) -> None:
        steps.append([(item.begin, item.n_tokens, item.n_rows) for item in step.work])
        launch(step, *rest)

    monkeypatch.setattr(bench.engine.steps, "launch", watched)
    bench.time(shape)
    timed = [[(3, 4, 0)], [(7, 1, 1)], [(3, 4, 0)], [(7, 1, 1)], [(8, 1, 1)] * 2, [(9, 1, 1)] * 2]
    assert steps == [[(0, 3, 1)], [(0, 3, 1)], *timed]
    steps.clear()
    bench.time(shape)
    assert steps == timed


# ---- bench --------------------------------------------------------------------------------------------------


def test_bench_prints_a_line_for_each_shape(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(
        capsys, "bench", str(model), "-p", "8,16", "-n", "4", "-np", "1,2", "-d", "0,8", "--pg", "4,2", "-r", "2", *ON
    ).splitlines()
    labels = [line.split(":")[0] for line in shown]
    assert labels == [
        "pp8", "pp16", "pp8 @ d8", "pp16 @ d8", "tg4", "tg4 x2", "tg4 @ d8", "tg4 x2 @ d8", "pp4+tg2", "pp4+tg2 @ d8",
    ]  # fmt: skip
    assert all(" t/s (2 reps, " in line for line in shown)


def test_bench_json_is_all_there_is(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = json.loads(printed(capsys, "bench", str(model), "-p", "8", "-n", "0", "-r", "3", "--json", *ON))
    (record,) = records
    assert next(iter(record)) == "avg_ts"
    assert len(record["reps_ts"]) == 3 and record["avg_ts"] == pytest.approx(np.mean(record["reps_ts"]))
    assert record["reps_ts"] == pytest.approx([8e9 / ns for ns in record["samples_ns"]], rel=1e-3)
    assert (record["n_prompt"], record["n_gen"], record["n_depth"]) == (8, 0, 0)
    assert record["model_n_params"] > 0 and record["cpu_info"] and record["n_cores"] >= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-p", "0", "-n", "0"], "nothing to time"),
        (["-p", "many"], "no list of whole numbers"),
        (["-p", "-5"], "negative"),
        (["-r", "0"], "at least 1"),
        (["--pg", "5"], "two numbers"),
        (["-p", "600"], "trained for 512"),
        (["-ngl", "7"], "-ngl is 0"),
        (["-ngl", "some"], "-ngl is 0"),
        (["--kv-dtype", "int3"], "int3"),
        (["--quantize", "int8"], "already"),
    ],
)
def test_bench_refuses(words: list[str], said: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(model), *words, *([] if "-ngl" in words else ON)]) == 3
    assert said in capsys.readouterr().err


def test_a_baseline_is_a_gate(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(model), "-p", "8", "-n", "0", "-r", "1", *ON]
    records = json.loads(printed(capsys, *words, "--json"))
    before = tmp_path / "before.json"
    for factor, code, said in ((0.001, 0, "ok"), (1000, 1, "SLOWER")):
        before.write_text(json.dumps([{**record, "median_ts": record["median_ts"] * factor} for record in records]))
        assert main([*words, "--baseline", str(before)]) == code
        assert f": {said}" in capsys.readouterr().err
    assert main([*words[:3], "9", *words[4:], "--baseline", str(before)]) == 3
    assert "The baseline has no pp9" in capsys.readouterr().err
    for tolerance in ("nan", "-1", "inf", "many"):  # with NaN, no figure was ever slower
        assert main([*words, "--baseline", str(before), "--tolerance", tolerance]) == 3
        assert "per cent" in capsys.readouterr().err
    before.write_text("{}")
    assert main([*words, "--baseline", str(tmp_path / "none.json")]) == 3
    assert "cannot be used" in capsys.readouterr().err


def test_five_percent_slower_is_as_fast() -> None:
    fields = ("model_type", "model_size", "backends", "n_threads", "cpu_info")
    record = {"test": "pp8", "median_ts": 95.1, **dict.fromkeys(fields, 1)}
    assert judge([record], {key_of(record): 100.0}, 0.05) == 0
    assert judge([{**record, "median_ts": 94.9}], {key_of(record): 100.0}, 0.05) == 1


# ---- compare ------------------------------------------------------------------------------------------------


def program(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


FAKE_BENCH = """
import json, sys
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert a["-r"] == "1" and a["-o"] == "json" and a["-b"] == a["-ub"] and int(a["-t"]) > 0
open(LOG, "a").write(json.dumps(a) + "\\n")
if a["-p"] == "16":
    sys.exit("out of memory, says the fake")
print(json.dumps([{"avg_ts": 50.0, "build_commit": "abc"}]))
"""


def test_compare_with_a_program(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    program(tmp_path, "llama-bench", FAKE_BENCH.replace("LOG", repr(str(log))))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    words = ["compare", str(model), "-p", "8,16", "-n", "2", "--pg", "4,2", "-r", "2", "-b", "32", "--json", *ON]
    assert main(words) == 0
    out, err = capsys.readouterr()
    found = {row["test"]: row for row in json.loads(out)["rows"]}
    assert list(found) == ["pp8", "pp16", "tg2", "pp4+tg2"]
    assert "llama-bench runs one sequence, so tg2 x8 is left out" in err
    assert found["pp8"]["peer_ts"] == pytest.approx(50) and len(found["pp8"]["peer_reps_ts"]) == 2
    assert found["pp8"]["ratio"] == pytest.approx(found["pp8"]["tahr_ts"] / 50)
    assert found["pp8"]["peer"] == "llama-bench abc"
    assert "out of memory, says the fake" in found["pp16"]["error"] and found["pp16"]["ratio"] is None
    requested = [json.loads(line) for line in log.read_text().splitlines()]
    assert len([a for a in requested if a["-p"] == "8"]) == 3  # one to warm up, two that count
    assert {a["-pg"] for a in requested if "-pg" in a} == {"4,2"} and {a["-b"] for a in requested} == {"32"}


def test_compare_without_a_peer(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tahr.tools.peers.find_spec", lambda name: None)
    shown = printed(capsys, "compare", str(model), "-p", "8", "-n", "0", "-r", "1", *ON)
    assert "ERR: there is no llama-bench on the PATH, and no module llama_cpp" in shown
    assert "| ERR " in shown.splitlines()[2]


def test_ctx_reads_that_much_and_generates_after_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--ctx", "8,16", "--gen", "2", "-np", "1", "--turn", "4,2", "--reps", "1", "--json"]
    rows = json.loads(printed(capsys, "compare", str(model), *words, *ON))["rows"]
    assert [row["test"] for row in rows] == ["pp8", "pp16", "tg2 @ d8", "tg2 @ d16", "pp4+tg2"]


def test_a_sweep_is_a_matrix_over_models_and_goes_on_after_a_bad_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "llama-bench", FAKE_BENCH.replace("LOG", repr(str(tmp_path / "log"))))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("tahr.cli.bench.compare.SWEEP", ((8, 0, 0), (0, 2, 0), (0, 2, 8), (16, 0, 8)))
    (tmp_path / "bad.gguf").write_bytes(b"GGUF but not much more")
    assert main(["compare", str(model), str(tmp_path / "bad.gguf"), "--sweep", "-r", "1", *ON]) == 6
    shown, said = capsys.readouterr()
    assert "bad.gguf" in said
    head = next(line for line in shown.splitlines() if "tg2 @ d8" in line and "pp8" in line)
    assert [cell.strip() for cell in head.split("|")[1:-1]] == ["model", "pp8", "tg2", "tg2 @ d8", "pp16 @ d8"]
    ratios = shown.splitlines()[shown.splitlines().index(head) + 2].split("|")[2:-1]
    assert all(cell.strip().endswith("x") for cell in ratios[:3]) and ratios[3].strip() == "ERR"
    assert len(shown.split("worst first:")[1].strip().splitlines()) == 3


FAKE_MODULE = '''
"""Enough of llama_cpp to be timed: it counts steps and fails where it is told to."""
from types import SimpleNamespace as Bag
import os, time
__version__ = "9.9"
steps = []
def llama_backend_init(): os.write(1, b"a log line on stdout\\n")
def llama_model_default_params(): return Bag()
def llama_model_load_from_file(path, params): return None if b"broken" in path else Bag()
def llama_context_default_params(): return Bag()
def llama_init_from_model(model, params): assert params.n_threads == 3 and params.n_ubatch == 4; return Bag()
def llama_get_memory(context): return Bag()
def llama_model_get_vocab(model): return Bag()
def llama_vocab_n_tokens(vocab): return 100
def llama_memory_seq_rm(memory, sequence, start, end): return True
def llama_batch_init(n, embd, seqs):
    return Bag(token=[0] * n, pos=[0] * n, n_seq_id=[0] * n, logits=[0] * n, seq_id=[[0] for _ in range(n)])
def llama_decode(context, batch):
    assert all(0 <= t < 100 for t in batch.token)
    steps.append(list(zip((s[0] for s in batch.seq_id), batch.pos, batch.logits)))
    time.sleep(0.001 * batch.n_tokens)
    return 1 if batch.pos[-1] >= 40 else 0
def llama_synchronize(context): pass
def llama_batch_free(batch): pass
'''


@pytest.fixture
def fake_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "llama_cpp.py").write_text(FAKE_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return sys.executable


def test_compare_with_the_module_of_another_python(
    model: Path, fake_module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tahr.tools.comparison.os.cpu_count", lambda: 3)  # the reference backend has no threads to copy
    words = ["-p", "8,48", "-n", "3", "-np", "1,2", "-r", "2", "-b", "4", "--peer-python", fake_module, "--json"]
    found = {row["test"]: row for row in json.loads(printed(capsys, "compare", str(model), *words, *ON))["rows"]}
    assert found["pp8"]["peer"] == "llama_cpp 9.9"
    assert 100 < found["pp8"]["peer_ts"] < 1000  # a millisecond for each token
    assert 100 < found["tg3 x2"]["peer_ts"] < 1000
    assert "llama_decode failed with 1" in found["pp48"]["error"]


@pytest.mark.parametrize(("python", "said"), [("no/such/python", "does not run"), ("true", "ended")])
def test_a_python_that_is_none(python: str, said: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "compare", str(model), "-p", "8", "-n", "0", "-r", "1", "--peer-python", python, *ON)
    assert f"ERR: {python}" in shown or "ERR: llama_cpp ended" in shown
    assert said in shown


def test_the_worst_comes_first() -> None:
    def row(name: str, ours: float, theirs: float | None) -> Compared:
        shape = Shape(n_gen=1)
        return Compared(
            name, Result(shape, (ours,)), Result(shape, (theirs,)) if theirs else None, "peer", "" if theirs else "why"
        )

    rows = [row("fast", 1, 4), row("slow", 4, 1), row("lost", 1, None)]
    assert [line.split()[:2] for line in worst_first(rows).splitlines()] == [["0.25x", "slow"], ["4.00x", "fast"]]
    assert table(rows).count("\n") == 4 and "4.00x" in table(rows)


# ---- groups -------------------------------------------------------------------------------------------------


N_CASES = {
    "prefill": 4, "decode": 1, "full_pipeline": 4, "prefix_cache": 2, "prefix_cache_lengths": 6, "batch_prefill": 6,
    "chunked_prefill": 4,
}  # fmt: skip
ON_CPU = ["-n", "2", "-r", "1", "--backend", "cpu"]


def test_every_group_runs_and_is_written_down(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = json.loads(printed(capsys, "bench", str(stories), "--group", "all", "--json", *ON_CPU))
    cases: dict[str, int] = {}
    for record in records:
        cases[record["group"]] = cases.get(record["group"], 0) + 1
        assert len(record["samples_s"]) == 1 and record["median_s"] > 0 and record["cpu_info"]
    assert cases == N_CASES


def test_groups_are_chosen_by_name(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(stories), *ON_CPU, "--group", "decode", "--group", "batch_prefill"]
    shown = printed(capsys, *words).splitlines()
    assert [line.partition(":")[0] for line in shown if not line.startswith(" ")] == ["decode", "batch_prefill"]
    assert sum(" ms " in line for line in shown) == N_CASES["decode"] + N_CASES["batch_prefill"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--group", "warp"], "invalid choice"),
        (["--group", "decode", "-p", "8", "-np", "2"], "leave out -p and -np"),
        (["--group", "decode", "-n", "1,2"], "several numbers of -n"),
        (["--group", "decode", "--baseline", "a.json"], "leave out --baseline"),
    ],
)
def test_groups_refuse(words: list[str], said: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(model), *words]) == 3
    assert said in capsys.readouterr().err


# ---- programs beside the package -----------------------------------------------------------------------------


def script(name: str, *words: str) -> str:
    """What a program of benchmarks/ prints."""
    path = Path(__file__).parents[2] / "benchmarks" / name
    environment = {**os.environ, "PYTHONPATH": str(path.parents[1])}
    done = subprocess.run(
        [sys.executable, str(path), *words], check=True, env=environment, capture_output=True, text=True
    )
    return done.stdout


def test_kernels_are_measured_and_drawn(tmp_path: Path) -> None:
    figures, drawn = tmp_path / "roof.json", tmp_path / "roof.svg"
    shown = script(
        *("kernels.py", "--formats", "Q4_0,F16", "--rows", "1,64", "--shape", "256x256", "-t", "1"),
        *("--stream", "16", "--roof-seconds", "0.2", "--json", str(figures)),
    )
    record = json.loads(figures.read_text())
    assert [(f["format"], f["n_rows"]) for f in record["figures"]] == [
        ("Q4_0", 1),
        ("Q4_0", 64),
        ("F16", 1),
        ("F16", 64),
    ]
    assert all(f["share"] > 0 for f in record["figures"]) and record["environment"]["cpu_info"] in shown
    script("roof_plot.py", str(figures), str(drawn))
    names = [element.text for element in ElementTree.parse(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert "Q4_0" in names and f"{record['figures'][3]['share']:.0%}" in names


def test_loading_is_timed_in_fresh_processes(stories: Path) -> None:
    row = script("load_time.py", str(stories), "-r", "1").splitlines()[-1].split("|")
    load, first, process = (float(cell.split()[0]) for cell in row[3:6])
    assert load > 0 and first > 0 and load + first <= process


def test_time_that_other_machines_took_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stat"
    monkeypatch.setattr(environment, "STAT", file)
    assert environment.Neighbours().warning() == "", "a system that does not say"
    file.write_text("cpu  100 0 50 9999 7 0 0 20 0 0\ncpu0 1 1 1\n")
    neighbours = environment.Neighbours()
    file.write_text("cpu  180 0 55 19999 9 0 0 35 0 0\ncpu0 1 1 1\n")
    assert neighbours.share == pytest.approx(0.15)
    assert "15% of the processor's time" in neighbours.warning()
    file.write_text("cpu  1100 0 50 19999 9 0 0 25 0 0\n")
    assert neighbours.warning() == ""
