#!/usr/bin/env bash
# Other people's clients against `tahr serve` with a real model: `make clients`. Argument: the Python that Tahr is in.
set -euo pipefail
cd "$(dirname "$0")/.."
tahr_python=${1:?usage: scripts/clients.sh PYTHON}
model=smollm2:135m
venv=.venv-clients
venv_agents=.venv-clients-agents
work=build/clients
mkdir -p "$work"

# ---- what the clients need ----------------------------------------------------------------------------------

patiently() {  # seconds command...: up to three times, none of which can hang
    local try
    for try in 1 2 3; do
        timeout -k 5 "$1" "${@:2}" && return 0
    done
    return 1
}

install_into() {  # venv requirements
    [ "tests/clients/$2" -nt "$1/.installed" ] || return 0
    echo "Installing Python clients into $1 ..."
    "$tahr_python" -m venv "$1"
    # Most of what comes along is never imported, so it is not compiled either.
    patiently 500 "$1/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check \
        -r "tests/clients/$2"
    touch "$1/.installed"
}

install_python() {
    install_into "$venv" requirements.txt
}

install_agents() {
    install_into "$venv_agents" requirements-agents.txt
}

install_npm() {
    [ tests/clients/package.json -nt "$work/.installed" ] || return 0
    echo "Installing npm packages into $work ..."
    command -v npm >/dev/null || { echo "The npm clients need Node.js: install it, with npm."; return 1; }
    cp tests/clients/package.json "$work/"
    (cd "$work" && patiently 120 npm install --no-audit --no-fund --loglevel=error)
    touch "$work/.installed"
}

find_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

install_browser() {  # what cannot be installed shows at the check that needs it
    { find_browser >/dev/null || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; } && return 0
    echo "Installing Chromium ..."
    local options=(-o Acquire::Retries=2 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o DPkg::Lock::Timeout=60)
    export DEBIAN_FRONTEND=noninteractive
    {
        timeout -k 5 120 apt-get update "${options[@]}" -o APT::Update::Error-Mode=any &&
            timeout -k 5 300 apt-get install -y --no-install-recommends "${options[@]}" chromium
    } >"$work/apt.log" 2>&1 </dev/null || echo "(gave up after $SECONDS s)" >>"$work/apt.log"
}

# Side by side: each waits for the network most of the time.
waiting=()
for what in python agents npm browser; do
    "install_$what" &
    waiting+=("$what:$!")
done
for each in "${waiting[@]}"; do
    wait "${each#*:}" || { echo "FAIL  the ${each%%:*} clients could not be installed: is the package index reachable?"; exit 1; }
done
browser=$(find_browser || true)

# ---- servers ------------------------------------------------------------------------------------------------

servers=()
# The only processes this script ends are those it started.
trap 'for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null || true; done; wait' EXIT

address=
start() {  # log options...: sets $address to where a new server listens
    launch "$1" -m tahr serve "$model" --port 0 --no-request-log "${@:2}"
}

launch() {  # log arguments of Python...: the same, for any program that says where it is ready
    local log=$work/$1 pid
    "$tahr_python" "${@:2}" >"$log" 2>&1 &
    pid=$!
    servers+=("$pid")
    local give_up=$((SECONDS + 300))  # the model may have to be fetched
    until address=$(sed -n 's/^Ready on \([^ ]*\) .*/\1/p' "$log") && [ -n "$address" ]; do
        kill -0 "$pid" 2>/dev/null || { echo "FAIL  the server did not start:"; cat "$log"; exit 1; }
        [ $SECONDS -lt $give_up ] || { echo "FAIL  the server is not ready after five minutes:"; cat "$log"; exit 1; }
        sleep 0.2
    done
}

failed=0
check() {  # name seconds command...: one line per client
    local began=$SECONDS log=$work/check.log
    if timeout -k 5 "$2" "${@:3}" >"$log" 2>&1; then
        echo "PASS  $1 ($((SECONDS - began)) s)"
    else
        echo "FAIL  $1 ($((SECONDS - began)) s)"
        tail -n 40 "$log"
        failed=1
    fi
}

# ---- clients ------------------------------------------------------------------------------------------------

export NODE_PATH=$PWD/$work/node_modules
python=$venv/bin/python
here=tests/clients

start server.log
check "openai (Python)" 120 "$python" $here/check_openai.py "$address"
check "openai: tools" 240 "$python" $here/check_tools.py "$address" "$model"
check "openai (npm)" 60 node $here/check_openai.cjs "$address"
check "langchain-openai" 90 "$python" $here/check_langchain.py "$address" "$model"
check "structured output: openai parse, instructor, langchain" 180 "$python" $here/check_structured.py "$address" "$model"
check "llama-index" 90 "$python" $here/check_llama_index.py "$address" "$model"
real=$address
launch tools.log $here/tool_server.py
scripted=$address address=$real
check "anthropic (Python)" 120 "$python" $here/check_anthropic.py "$real" "$model" "$scripted"
check "openai: responses" 120 "$python" $here/check_responses.py "$real" "$model" "$scripted"
check "openai-agents: responses" 120 "$venv_agents/bin/python" $here/check_openai_agents.py "$scripted"
check "anthropic, openai and ai (npm): messages, responses" 60 node $here/check_apis.cjs "$real" "$model" "$scripted"
check "langchain-anthropic, litellm" 120 "$python" $here/check_wrappers.py "$scripted"
check "ollama, langchain-ollama, llama-index-llms-ollama" 120 "$python" $here/check_ollama.py "$real" "$model" "$scripted"
check "ollama (npm)" 60 node $here/check_ollama.cjs "$real" "$model" "$scripted"
check "examples of the documents" 300 "$python" $here/check_examples.py "$address" README.md docs/serving.md docs/clients.md
check "tahr run --server" 60 "$tahr_python" -m tahr run "$model" --server "$address" -p "Name a fruit" --choice apple,pear
check "modules of the chat page under node" 60 node --test $here/page/*.test.mjs
prometheus=$(realpath -m "$work")/prometheus/usr/bin
if command -v prometheus >/dev/null || [ -x "$prometheus/prometheus" ] || (
    mkdir -p "$work/prometheus" && cd "$work/prometheus" && apt-get -qq download prometheus && dpkg-deb -x prometheus_*.deb .
) >/dev/null 2>&1; then
    PATH=$prometheus:$PATH check "prometheus: rules, and a scrape" 120 "$tahr_python" -m pytest -q -n0 tests/packaging/test_monitoring.py
else
    echo "SKIP  prometheus: it is a package of Debian"
fi
if [ -n "$browser" ]; then
    launch page.log $here/page_server.py
    check "chat page in Chromium" 480 node $here/check_page.cjs "$real" "$address" "$browser" "$work"
elif [ -n "${CI:-}" ]; then
    echo "FAIL  chat page in Chromium: there is no browser, and none could be installed; this is what apt said:"
    tail -n 8 "$work/apt.log" 2>/dev/null || echo "(nothing: it was not tried, because this is not root on Debian)"
    failed=1
else
    echo "SKIP  chat page in Chromium: install chromium, or run this as root"
fi
start fuzzed.log --max-tokens-cap 2
check "schemathesis" 900 "$python" $here/check_schema.py "$address" 4000
exit $failed
