"""Every curl command and every Python block of the documents given, run against the server as a reader would."""

import re
import subprocess
import sys
from pathlib import Path

WRITTEN = re.compile(r"(?:http://)?(?:127\.0\.0\.1|localhost):8080")
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.M | re.S)
CURL = re.compile(r"^curl (?:.*\\\n)*.*(?:\n .*)*", re.M)  # with continued and indented lines


def run(command: list[str], shown: str) -> None:
    made = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0 and made.stdout.strip(), f"{shown}\n{made.stdout[-2000:]}\n{made.stderr[-2000:]}"
    if '"stream": true' in shown:
        assert made.stdout.rstrip().endswith("data: [DONE]"), made.stdout[-500:]


def main(address: str, documents: list[str]) -> None:
    n_run = {"sh": 0, "python": 0}
    for document in documents:
        for kind, text in BLOCK.findall(Path(document).read_text()):
            if "tahr serve --model" in text:  # models that are not served here
                continue
            if kind == "python" and WRITTEN.search(text):
                run([sys.executable, "-c", WRITTEN.sub(address, text)], text)
                n_run[kind] += 1
            for command in CURL.findall(text) if kind == "sh" else []:
                run(["bash", "-c", WRITTEN.sub(address, command).replace("curl", "curl --fail -sS", 1)], command)
                n_run[kind] += 1
    assert n_run["sh"] >= 10 and n_run["python"] >= 1, n_run


main(sys.argv[1], sys.argv[2:])
