"""Dashboard and alerts ask for metrics that there are; Debian's Prometheus, where it is installed, says the same."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_engine import ScriptedEngine, serving
from tahr.server.lifecycle import HttpServer
from tahr.server.observe import server_metrics
from tahr.server.state.settings import Settings

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "monitoring"
NAME = re.compile(r"\b(?:tahr|vllm)[_:]\w+")
# Families of servers with a disk for pages or a counter of energy.
RARE = {"tahr_kv_disk_failed", "tahr_energy_joules_total"}
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")), reason="Debian's package prometheus is not installed"
)


@contextmanager
def used_server() -> Iterator[HttpServer]:
    """A server that has answered and refused."""
    with serving(ScriptedEngine(), settings=Settings(port=0, log_interval_s=0, rate_limit=3)) as server:
        for _ in range(4):
            httpx.post(f"{server.address}/v1/completions", json={"prompt": "hi", "max_tokens": 3})
        yield server


def expressions() -> list[str]:
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    rules = [line for line in (FILES / "alerts.yml").read_text().splitlines() if "tahr_" in line]
    return [target["expr"] for panel in panels for target in panel["targets"]] + rules


def test_the_dashboard_is_what_its_script_writes() -> None:
    made = subprocess.run([sys.executable, ROOT / "scripts/dashboard.py"], capture_output=True, text=True, check=True)
    assert made.stdout == (FILES / "dashboard.json").read_text()
    panels = json.loads(made.stdout)["panels"]
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_every_metric_that_is_asked_for_is_there() -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    with used_server() as server:
        text = httpx.get(f"{server.address}/metrics").text
    there = set(re.findall(r"^([\w:]+)[{ ]", text, re.M))
    source = Path(server_metrics.__file__).read_text()
    assert len(asked) > 20 and asked - there <= RARE
    assert all(name.removeprefix("tahr_") in source for name in asked & RARE)


@needs_prometheus
@pytest.mark.parametrize(
    "command",
    [["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]],
)
def test_promtool_finds_nothing_wrong(tmp_path: Path, command: list[str]) -> None:
    for file in (*FILES.glob("*.yml"), ROOT / "tests/packaging/alerts_test.yml"):
        shutil.copy(file, tmp_path)
    made = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr


@needs_prometheus
def test_prometheus_scrapes_a_running_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with used_server() as server:
        config = (
            (FILES / "prometheus.yml").read_text().replace("127.0.0.1:8080", server.address.removeprefix("http://"))
        )
        (tmp_path / "prometheus.yml").write_text(config.replace("15s", "1s"))
        shutil.copy(FILES / "alerts.yml", tmp_path)
        metrics = httpx.get(f"{server.address}/metrics").content
        linted = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, check=False)
        assert not re.findall(rb"(?m)^tahr_.*", linted.stderr), linted.stderr
        options = ["--config.file=prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        command = ["prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as prometheus:
            try:
                found = asked_until(f"http://127.0.0.1:{port}", "sum by (model_name) (tahr_generation_tokens_total)")
                assert found[0]["metric"] == {"model_name": "scripted"} and float(found[0]["value"][1]) == 9
                assert asked_until(f"http://127.0.0.1:{port}", 'up{job="tahr"} == 1')
            finally:
                prometheus.terminate()


def asked_until(address: str, query: str) -> list[dict[str, Any]]:
    """The answer to a query, once there is one."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            found = httpx.get(f"{address}/api/v1/query", params={"query": query}).json()["data"]["result"]
        except (httpx.HTTPError, KeyError, ValueError):
            found = []
        if found:
            return list(found)
        time.sleep(0.2)
    raise AssertionError(f"Prometheus has no answer to {query}")
