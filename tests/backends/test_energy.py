"""Energy: what is counted, how it is shared out, that nothing waits for a reading, and that no figure is made up."""

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import engines
from tahr.backends.host import energy as counters
from tahr.engine import energy
from tahr.engine.energy import EnergyMeter
from tahr.engine.sequences.stats import EnergyUse, EngineStats, StatsSnapshot
from tahr.server.observe.metrics import exposition
from tahr.server.observe.server_metrics import energy_families

WATTS = 100.0


def zone(root: Path, folder: str, name: str, microjoules: int, period: int = 1_000_000) -> Path:
    """A zone of the power capping framework."""
    made = root / folder
    made.mkdir(parents=True)
    (made / "name").write_text(f"{name}\n")
    (made / "energy_uj").write_text(f"{microjoules}\n")
    (made / "max_energy_range_uj").write_text(f"{period - 1}\n")
    return made / "energy_uj"


# ---- processors -------------------------------------------------------------------------------------------------


def test_packages_and_their_memory_are_added_up(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 7)
    part = zone(tmp_path, "intel-rapl:0:0", "core", 50)  # counted by its package
    zone(tmp_path, "intel-rapl:1", "psys", 5000)  # a whole machine, packages included
    counter = counters.rapl_counter(tmp_path)
    assert counter and counter.joules() == 0 and counter.name == "RAPL, package-0, dram"
    package.write_text("500100")
    memory.write_text("250007")
    part.write_text("900000")
    assert counter.joules() == pytest.approx(0.75)


def test_a_count_that_begins_anew_goes_on(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    counter = counters.rapl_counter(tmp_path)
    assert counter
    for microjoules, joules in ((999_999, 0.099999), (100_000, 0.2), (50_000, 1.15)):
        package.write_text(str(microjoules))
        assert counter.joules() == pytest.approx(joules)


@pytest.mark.parametrize("fault", ["no zones", "nonsense", "unreadable", "no range"])
def test_what_cannot_be_read_is_not_counted(tmp_path: Path, fault: str) -> None:
    if fault != "no zones":
        zone(tmp_path, "intel-rapl:0", "package-0", 1)
        second = zone(tmp_path, "intel-rapl:1", "package-1", 1)
        if fault == "nonsense":
            second.write_text("many")
        else:  # for others than root the count is there and may not be read
            (second if fault == "unreadable" else second.parent / "max_energy_range_uj").unlink()
    assert counters.rapl_counter(tmp_path) is None


def test_a_zone_that_goes_ends_the_counting(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    counter = counters.rapl_counter(tmp_path)
    package.unlink()
    assert counter and counter.joules() is None


# ---- cards ------------------------------------------------------------------------------------------------------


def nvml(millijoules: list[int], init: int = 0, found: int = 0) -> Any:
    """A library that knows one card, and fails when it has told all counts."""

    def total(handle: ctypes.c_void_p, into: Any) -> int:
        assert handle.value == 7
        if not millijoules:
            return 15  # the card is lost
        into._obj.value = millijoules.pop(0)
        return 0

    def by_uuid(uuid: bytes, into: Any) -> int:
        assert uuid == b"GPU-1"
        into._obj.value = 7
        return found

    return SimpleNamespace(
        nvmlInit_v2=lambda: init, nvmlDeviceGetHandleByUUID=by_uuid, nvmlDeviceGetTotalEnergyConsumption=total
    )


def test_a_card_is_found_by_its_id_and_counts_until_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvml([1000, 5500])
    monkeypatch.setattr(counters.ctypes, "CDLL", lambda name: library)
    counter = counters.nvml_counter("GPU-1")
    assert counter and counter.name == "NVML, GPU-1"
    assert [counter.joules(), counter.joules()] == [5.5, None]


@pytest.mark.parametrize("library", [nvml([], 9), nvml([], 0, 6), nvml([])], ids=["no driver", "no card", "no count"])
def test_cards_that_tell_nothing(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setattr(counters.ctypes, "CDLL", lambda name: library)
    assert counters.nvml_counter("GPU-1") is None


def test_no_library() -> None:
    assert counters.nvml_counter("GPU-1", "libno-such-library.so") is None


# ---- sharing out ------------------------------------------------------------------------------------------------


class Device:
    """Draws so many watts, and notes which threads read that."""

    name = "a device"

    def __init__(self, last_s: float = float("inf")):
        self.began = time.perf_counter()
        self.last_s = last_s  # after which it tells nothing any more
        self.readers: set[int] = set()

    def joules(self) -> float | None:
        self.readers.add(threading.get_ident())
        seconds = time.perf_counter() - self.began
        return seconds * WATTS if seconds < self.last_s else None


def wait_until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "PERIOD_S", 0.01)
    monkeypatch.setattr(energy, "N_PERIODS", 1)
    monkeypatch.setattr(energy, "LEAST_S", 0.05)


def work(stats: EngineStats, meter: EnergyMeter, decoding: bool, n_steps: int = 20) -> None:
    """Steps of a hundredth of a second."""
    for _ in range(n_steps):
        began = time.perf_counter()
        meter.wake()
        time.sleep(0.01)
        stats.count_step(10, 10 if decoding else 0, time.perf_counter() - began, False)


@pytest.mark.usefixtures("quick")
def test_joules_go_where_the_seconds_went() -> None:
    stats = EngineStats()
    is_busy = True
    device = Device()
    meter = EnergyMeter(device, stats, lambda: is_busy)
    assert meter.use() is None
    work(stats, meter, decoding=False)
    work(stats, meter, decoding=True, n_steps=40)
    is_busy = False
    wait_until(lambda: (use := meter.use()) and use.idle_j > 0)
    use = meter.use()
    assert use and use.source == "a device"
    assert use.prefill_j + use.decode_j + use.idle_j == pytest.approx(WATTS * use.measured_s, rel=0.02)
    assert use.prefill_j == pytest.approx(WATTS * stats.prefill_s, rel=0.25)
    assert use.decode_j == pytest.approx(WATTS * stats.decode_s, rel=0.25)
    meter.close()
    assert threading.get_ident() not in device.readers and len(device.readers) == 1


@pytest.mark.usefixtures("quick")
def test_a_long_step_is_counted_when_it_lands() -> None:
    stats = EngineStats()
    is_busy = True
    meter = EnergyMeter(Device(), stats, lambda: is_busy)
    began = time.perf_counter()
    meter.wake()
    time.sleep(0.2)  # many readings without an end of a step
    assert meter.use() is None
    stats.count_step(512, 0, time.perf_counter() - began, False)
    is_busy = False
    wait_until(meter.use)
    use = meter.use()
    assert use and use.prefill_j == pytest.approx(0.2 * WATTS, rel=0.3) and use.decode_j == 0
    meter.close()


def test_a_card_that_works_is_read_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "PERIOD_S", 0.001)
    n_looks = 0
    reads: list[int] = []

    def is_busy() -> bool:
        nonlocal n_looks
        n_looks += 1
        return n_looks <= 2 * energy.N_PERIODS + 3

    def joules() -> float:
        reads.append(n_looks)
        return 0.0

    counter: Any = SimpleNamespace(name="a card", joules=joules)
    meter = EnergyMeter(counter, EngineStats(), is_busy)
    meter.wake()
    wait_until(lambda: len(reads) == 4)
    assert reads == [0, energy.N_PERIODS, 2 * energy.N_PERIODS, 2 * energy.N_PERIODS + 4]
    meter.close()


@pytest.mark.usefixtures("quick")
def test_nothing_is_read_while_the_engine_is_idle() -> None:
    stats = EngineStats()
    reads = []
    device = Device()
    read = device.joules
    device.joules = lambda: reads.append(1) or read()  # type: ignore[method-assign, func-returns-value]
    meter = EnergyMeter(device, stats, lambda: False)
    assert not reads
    work(stats, meter, decoding=True, n_steps=1)
    wait_until(lambda: len(reads) >= 2)
    time.sleep(0.1)
    n = len(reads)
    time.sleep(0.1)
    assert len(reads) == n
    meter.close()


@pytest.mark.usefixtures("quick")
def test_a_counter_that_fails_ends_the_measuring_and_keeps_what_there_is() -> None:
    stats = EngineStats()
    meter = EnergyMeter(Device(last_s=0.3), stats, lambda: True)
    work(stats, meter, decoding=True, n_steps=40)
    wait_until(lambda: not any(t.name == "tahr-energy" and t.is_alive() for t in threading.enumerate()))
    use = meter.use()
    assert use and 0 < use.decode_j <= 0.3 * WATTS
    meter.wake()  # as the engine does, which knows nothing of that


def test_no_figure_of_moments() -> None:
    meter = EnergyMeter(Device(), EngineStats(), lambda: False)
    meter.wake()
    time.sleep(0.02)
    assert meter.use() is None  # a tenth of a second says nothing
    meter.close()


@pytest.mark.usefixtures("quick")
def test_an_engine_measures_where_there_is_a_counter(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eng = engines.engine(stories)
    monkeypatch.setattr(type(eng.executor), "energy_counter", lambda self: None)
    assert eng.measure_energy() is None and eng.snapshot().energy is None
    monkeypatch.setattr(type(eng.executor), "energy_counter", lambda self: Device())
    meter = eng.measure_energy()
    assert meter
    while not eng.snapshot().energy:
        engines.run(eng, engines.submit(eng, [1, 5, 9, 300] * 20))
    wait_until(lambda: (use := meter.use()) and use.prefill_j > 0 and use.decode_j > 0)
    meter.close()


def test_metrics_have_it_where_it_is_measured() -> None:
    use = EnergyUse("a device", measured_s=2.0, prefill_j=30.5, decode_j=100.0, idle_j=1.0)
    text = exposition(energy_families({"a": StatsSnapshot(energy=use), "b": StatsSnapshot()})).decode()
    assert 'tahr_energy_joules_total{model_name="a",phase="prefill"} 30.5\n' in text
    assert 'tahr_energy_joules_total{model_name="a",phase="decode"} 100\n' in text
    assert 'tahr_energy_measured_seconds_total{model_name="a"} 2\n' in text
    assert '"b"' not in text
    assert energy_families({"b": StatsSnapshot()}) == []
