"""One agent against a scripted model: a whole session that reads a file, edits it, runs it and answers.

Arguments: the agent's name and its executable. The server runs with the Python of this program, in the agent's project.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from plays import DONE, FILE, NEW, OLD, TASK

HERE = Path(__file__).parent
PROMPT = f"{TASK}. Correct it and run it."
TEST = 'import greeting_text\nassert greeting_text.said() == "Hello, world", greeting_text.said()\n'
HELPER = (
    "import subprocess, sys\n\n\ndef said():\n"
    f'    return subprocess.run([sys.executable, "{FILE}"], capture_output=True, text=True).stdout.strip()\n'
)
TIMEOUT_S = 240
Requests = list[dict[str, Any]]


@dataclass(frozen=True)
class Agent:
    """How an agent is told its task and the server's address, and what must be true afterwards."""

    command: Callable[[str], list[str]]  # of the address, without the executable
    environment: Callable[[str], dict[str, str]] = lambda address: {}
    prepare: Callable[[Path, str], None] = lambda project, address: None
    check: Callable[[Requests, str], None] = lambda requests, output: None
    routes: set[str] = field(default_factory=lambda: {"/v1/chat/completions"})
    n_websockets: int = 0  # connections it opens
    finishes: set[str] = field(default_factory=lambda: {"stop", "tool_calls"})


# ---- opencode -------------------------------------------------------------------------------------------------


def write_opencode_config(project: Path, address: str) -> None:
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": "tahr/scripted",
        "permission": {"*": "allow"},
        "provider": {
            "tahr": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{address}/v1", "apiKey": "none"},
                "models": {"scripted": {"limit": {"context": 200_000, "output": 8192}}},
            }
        },
    }
    (project / "opencode.json").write_text(json.dumps(config))


def check_tool_session(requests: Requests, output: str) -> None:
    """Every result came back with the next request, and the last one was answered."""
    task = [each for each in requests if each["tools"] and TASK in json.dumps(each["messages"])]
    results = [[m["content"] for m in each["messages"] if m["role"] == "tool"] for each in task]
    assert [len(each) for each in results] == [0, 1, 2, 3], results
    assert "wrold" in str(results[-1][0]) and "Hello, world" in str(results[-1][2]), results[-1]
    assert task[-1]["reply"] == DONE and DONE in output, output[-2000:]
    for before, after in itertools.pairwise([each["messages"] for each in task]):
        assert after[: len(before)] == before, "the prefix cache would not find what was there before"


# ---- aider ----------------------------------------------------------------------------------------------------


def check_aider(requests: Requests, output: str) -> None:
    """The test failed once, and its output was sent."""
    last = [each["messages"][-1]["content"] for each in requests]
    assert any("AssertionError: Hello, word" in str(text) for text in last), last
    assert "Applied edit to greeting.py" in output, output[-2000:]


AIDER = [
    *("--model", "openai/scripted", "--edit-format", "diff", "--no-show-model-warnings", "--no-check-update"),
    *("--analytics-disable", "--no-pretty", "--no-gitignore", "--yes-always", "--auto-test"),
    *("--test-cmd", f"{sys.executable} check_greeting.py", "--message", PROMPT, FILE),
]

# ---- Claude Code and Codex ------------------------------------------------------------------------------------

CLAUDE = ["--print", PROMPT, "--model", "scripted", "--allowedTools", "Read", "Edit", "Bash"]


def claude_environment(address: str) -> dict[str, str]:
    models = {f"ANTHROPIC_DEFAULT_{size}_MODEL": "scripted" for size in ("OPUS", "SONNET", "HAIKU")}
    silent = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    return {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_AUTH_TOKEN": "none", **models, **silent}


def codex_command(address: str, more: str = "") -> list[str]:
    provider = f'{{name="Tahr", base_url="{address}/v1", wire_api="responses"{more}}}'
    settings = ['model_provider="tahr"', f"model_providers.tahr={provider}", 'web_search="disabled"']
    options = [word for setting in settings for word in ("-c", setting)]
    # The sandbox needs rights that a container does not give; the project is made for this and thrown away.
    return ["exec", "--dangerously-bypass-approvals-and-sandbox", *options, "-m", "scripted", PROMPT]


AGENTS = {
    "opencode": Agent(
        command=lambda address: ["run", PROMPT],
        environment=lambda address: {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        prepare=write_opencode_config,
        check=check_tool_session,
    ),
    "claude": Agent(
        command=lambda address: CLAUDE,
        environment=claude_environment,
        check=check_tool_session,
        routes={"/v1/messages"},
    ),
    "codex": Agent(
        command=codex_command,
        check=check_tool_session,
        routes={"/v1/responses"},
    ),
    "codex-websocket": Agent(
        command=partial(codex_command, more=", supports_websockets=true"),
        check=check_tool_session,
        routes={"/v1/responses"},
        n_websockets=1,
        finishes={"stop", "length"},  # the prompt of its tools is computed ahead
    ),
    "aider": Agent(
        command=lambda address: AIDER,
        environment=lambda address: {"OPENAI_API_BASE": f"{address}/v1", "OPENAI_API_KEY": "none"},
        check=check_aider,
    ),
}


# ---- a session ------------------------------------------------------------------------------------------------


def make_project(folder: Path) -> Path:
    """A repository with a program that has a mistake."""
    project = folder / "project"
    project.mkdir()
    (project / FILE).write_text(OLD + "\n")
    (project / "greeting_text.py").write_text(HELPER)
    (project / "check_greeting.py").write_text(TEST)
    author = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "A greeting"]):
        subprocess.run(["git", *command], cwd=project, check=True)
    return project


@contextmanager
def scripted_server(name: str, project: Path, folder: Path) -> Iterator[str]:
    """A server for one agent, started in the agent's project."""
    with (folder / "server.log").open("w") as log:
        command = [sys.executable, str(HERE / "agent_server.py"), name, str(folder / "requests.jsonl")]
        server = subprocess.Popen(command, cwd=project, stdout=log, stderr=log)
    try:
        yield wait_for_address(server, folder / "server.log")
    finally:
        server.terminate()
        server.wait(30)


def wait_for_address(server: subprocess.Popen[bytes], log: Path) -> str:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up and server.poll() is None:
        found = re.search(r"^Ready on (\S+)", log.read_text(), re.M)
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"The server did not start:\n{log.read_text()}")


def run(name: str, executable: str, folder: Path) -> None:
    agent, project = AGENTS[name], make_project(folder)
    home = folder / "home"
    home.mkdir()
    # A home of its own: what the user has set up for the agent neither helps nor gets changed.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "OPENAI_", "ANTHROPIC_"))}
    with scripted_server(name, project, folder) as address:
        agent.prepare(project, address)
        own = {"HOME": str(home), "PWD": str(project), **agent.environment(address)}
        made = subprocess.run(
            [executable, *agent.command(address)], cwd=project, env={**kept, **own},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
    log = (folder / "server.log").read_text()
    print(made.stdout[-4000:], log[-4000:], sep="\n--- server ---\n")
    assert made.returncode == 0, f"{name} ended with {made.returncode}"
    assert (project / FILE).read_text() == NEW + "\n", (project / FILE).read_text()
    check_log(log, agent)
    agent.check([json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()], made.stdout)


def check_log(log: str, agent: Agent) -> None:
    """Requests were streamed, came to the agent's route, and ended well."""
    assert len(re.findall(r"^websocket opened", log, re.M)) == agent.n_websockets, log
    starts = re.findall(r"^start .*route=(\S+).* stream=(\w+)", log, re.M)
    assert {route for route, _ in starts} <= agent.routes, starts
    assert sum(stream == "True" for _, stream in starts) >= 2, starts
    finishes = re.findall(r"^done .*finish=(\S+)", log, re.M)
    assert len(finishes) == len(starts) and set(finishes) <= agent.finishes, finishes


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tahr-agent-") as made_folder:
        run(sys.argv[1], str(Path(sys.argv[2]).absolute()), Path(made_folder))
