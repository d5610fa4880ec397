#!/usr/bin/env bash
# Runs what `make standalone` made where there is no Python: a bare Debian root. Needs root and debootstrap.
# usage: scripts/standalone_test.sh MODEL.gguf [FOLDER OF WHAT WAS MADE]
set -euo pipefail
cd "$(dirname "$0")/.."
model=$(realpath "$1")
made=$(realpath "${2:-dist}")
root=${SHIP_WORK:-build/ship}/bare
mkdir -p "$(dirname "$root")"
port=${PORT:-18181}
mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1 | tr -d ' ' || true)

[ -e "$root/bin/sh" ] || debootstrap --variant=minbase bookworm "$root" "$mirror" > "$root.log"
chroot "$root" sh -c 'test -z "$(command -v python3 cc gcc g++ clang)"' || { echo "FAILED: the root has a Python or a compiler"; exit 1; }
rm -rf "$root/opt/tahr"
tar -xzf "$made/tahr-standalone.tar.gz" -C "$root/opt"
cp "$made/tahr" "$root/opt/tahr-single"
cp "$model" "$root/model.gguf"

for tahr in /opt/tahr/tahr /opt/tahr-single; do
    chroot "$root" $tahr run /model.gguf -p Hi -n 8 --temp 0 --quiet
    chroot "$root" $tahr run /model.gguf -p "Name a fruit" --choice apple,pear --quiet
    chroot "$root" $tahr serve /model.gguf --port "$port" > "$root.serve.log" 2>&1 &
    server=$!
    trap 'kill $server 2>/dev/null || true' EXIT
    for _ in $(seq 300); do curl -sf "http://127.0.0.1:$port/ready" > /dev/null && break || sleep 0.1; done
    curl -sf "http://127.0.0.1:$port/v1/chat/completions" -H 'content-type: application/json' -d '{
        "messages": [{"role": "user", "content": "Is the sky blue?"}],
        "structured_outputs": {"choice": ["yes", "no"]}}' | grep -qE '"content": ?"(yes|no)"'
    kill -INT $server
    wait $server || true
    echo "$tahr runs and serves in a root without Python"
done
