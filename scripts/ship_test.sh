#!/usr/bin/env bash
# Installs the wheels of `make wheels` where there is neither a compiler nor a network: a bare Debian root. Needs root.
# usage: scripts/ship_test.sh MODEL.gguf [FOLDER OF WHEELS]
# The wheel for Python 3.12 and newer goes into Debian trixie (3.13), the one for 3.11 into bookworm.
set -euo pipefail
cd "$(dirname "$0")/.."
model=$(realpath "$1")
wheels=$(realpath "${2:-dist}")
work=${SHIP_WORK:-build/ship}
mkdir -p "$work"
mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1 | tr -d ' ' || true)

try_in() { # release, version of Python, tag of the wheel
    local root="$work/$1" wheel
    wheel=$(ls "$wheels"/tahr-*-"$3"-manylinux*_"$(uname -m)".whl)
    [ -e "$root/usr/bin/python3" ] || debootstrap --variant=minbase --include=python3,python3-venv "$1" "$root" "$mirror" > "$work/$1.log"
    rm -rf "$root/wheels" "$root/opt/tahr"
    "${PYTHON:-python3}" -m pip download --quiet --only-binary :all: --python-version "$2" --implementation cp \
        $(for minor in $(seq 5 36); do echo --platform "manylinux_2_${minor}_$(uname -m)"; done) \
        -d "$root/wheels" "$wheel"
    cp "$model" "$root/model.gguf"
    chroot "$root" sh -c 'test -z "$(command -v cc gcc g++ clang)"' || { echo "FAILED: $1 has a compiler"; exit 1; }
    chroot "$root" python3 -m venv /opt/tahr
    chroot "$root" /opt/tahr/bin/pip install --quiet --no-index --find-links /wheels tahr
    chroot "$root" /opt/tahr/bin/tahr --version
    chroot "$root" /opt/tahr/bin/tahr run /model.gguf -p Hi -n 8 --temp 0 --quiet
    echo "$(basename "$wheel") answers in Debian $1 with $(chroot "$root" python3 --version)"
}

try_in trixie 3.13 cp312-abi3
try_in bookworm 3.11 cp311-cp311
