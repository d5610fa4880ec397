#!/usr/bin/env bash
# Programmers' agents against a server with a scripted model: `make agents`. Argument: the Python that Tahr is in.
set -euo pipefail
cd "$(dirname "$0")/.."
tahr_python=${1:?usage: scripts/agents.sh PYTHON}
venv=.venv-agents
work=build/agents
here=tests/agents
mkdir -p "$work"

install_python() {
    [ $here/requirements.txt -nt "$venv/.installed" ] || return 0
    echo "Installing Python agents into $venv ..."
    "$tahr_python" -m venv "$venv"
    timeout -k 5 600 "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check -r $here/requirements.txt
    touch "$venv/.installed"
}

install_npm() {
    [ $here/package.json -nt "$work/.installed" ] || return 0
    echo "Installing npm agents into $work ..."
    command -v npm >/dev/null || { echo "The npm agents need Node.js: install it, with npm."; return 1; }
    cp $here/package.json "$work/"
    (cd "$work" && timeout -k 5 300 npm install --no-audit --no-fund --loglevel=error)
    touch "$work/.installed"
}

install_python &
python_job=$!
install_npm || { echo "FAIL  the npm agents could not be installed: is the package index reachable?"; exit 1; }
wait $python_job || { echo "FAIL  the Python agents could not be installed: is the package index reachable?"; exit 1; }

failed=0
check() {  # name executable: one line per agent
    local began=$SECONDS log=$work/$1.log
    if timeout -k 5 300 "$tahr_python" $here/check_agent.py "$1" "$2" >"$log" 2>&1; then
        echo "PASS  $1 ($((SECONDS - began)) s)"
    else
        echo "FAIL  $1 ($((SECONDS - began)) s)"
        tail -n 60 "$log"
        failed=1
    fi
}

check opencode "$work/node_modules/.bin/opencode"
check claude "$work/node_modules/.bin/claude"
check codex "$work/node_modules/.bin/codex"
check codex-websocket "$work/node_modules/.bin/codex"
check aider "$venv/bin/aider"
exit $failed
