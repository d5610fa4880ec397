"""schemathesis over /openapi.json: bodies good and bad, so many cases, and never a 5xx or an undescribed reply."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
# A description cannot say which fields exclude each other or how long a context is, so good data may be refused.
OPTIONS = ["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--seed", os.environ.get("SEED", "1")]
OPTIONS += ["--exclude-path", "/api/pull"]  # asks other servers for models of made-up names
OPTIONS += ["--exclude-path", "/drain"]  # ends the server
OPTIONS += ["--exclude-path-regex", "^/v1/audio/"]  # 503, because no model of recordings is served here
OPTIONS += ["--request-timeout", "60", "--max-response-time", "60"]  # 128 answers take their time
PASSES = [
    (["--phases", "coverage,fuzzing", "--max-examples", "30"], ""),
    (["--phases", "fuzzing", "--mode", "positive", "--max-examples", "60"], "thin_bodies"),
]
MEANT_TO_WORK = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
MEANT_TO_WORK += ("/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
COUNTED = re.compile(r'^tahr_http_requests_total\{route="([^"]+)",status="(\dxx)"\} (\d+)', re.M)


def run(address: str, options: list[str], hooks: str) -> int:
    """One pass; how many cases it tried."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", address + "/openapi.json"]
    env = os.environ | {"PYTHONPATH": str(HERE)} | ({"SCHEMATHESIS_HOOKS": hooks} if hooks else {})
    made = subprocess.run(command + OPTIONS + options, capture_output=True, text=True, env=env, cwd="build/clients")
    found = re.search(r"(\d+) generated", made.stdout)
    assert made.returncode == 0 and found, findings(made.stdout) or made.stdout[-3000:] + made.stderr[-2000:]
    return int(found[1])


def findings(report: str) -> str:
    """What went wrong, without the warnings and the summary that follow it."""
    sections = re.split(r"^=+ ([A-Z]+) =+$", report, flags=re.M)
    titles = zip(sections[1::2], sections[2::2], strict=True)
    return "\n".join(text.strip()[:3000] for title, text in titles if title in ("FAILURES", "ERRORS"))


def answers(address: str) -> dict[tuple[str, str], int]:
    """How often each route answered with each class of status, as the server itself counts."""
    with urllib.request.urlopen(address + "/metrics") as response:
        return {(route, status): int(n) for route, status, n in COUNTED.findall(response.read().decode())}


def main(address: str, n_wanted: int) -> None:
    n_cases = sum(run(address, options, hooks) for options, hooks in PASSES)
    counts = answers(address)
    print(n_cases, "cases;", json.dumps({" ".join(key): n for key, n in counts.items()}, indent=1))
    assert n_cases >= n_wanted, f"{n_cases} cases were tried, {n_wanted} are wanted"
    assert not [key for key in counts if key[1] == "5xx"], counts
    shallow = [route for route in MEANT_TO_WORK if counts.get((route, "2xx"), 0) < 10]
    assert not shallow, f"hardly a request got past the checks of {shallow}"


main(sys.argv[1], int(sys.argv[2]))
