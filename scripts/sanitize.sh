#!/usr/bin/env bash
# Builds the native code with address and undefined-behaviour sanitizers and runs it through the self-test, the op cases and the
# fuzzed files. usage: scripts/sanitize.sh [PYTHON]   (a Python >= 3.11 to make an environment of its own from)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
venv=.venv-sanitize
build=build/sanitize
site=$build/site

if [ ! -x $venv/bin/python ]; then
  echo "Making $venv ..."
  "${1:-python3}" -m venv $venv
fi
$venv/bin/python -m pip install --quiet --disable-pip-version-check numpy tokenizers jinja2 huggingface_hub pytest pytest-timeout hypothesis gguf nanobind cmake ninja

echo "Building with sanitizers ..."
$venv/bin/cmake -S . -B $build -G Ninja -DCMAKE_MAKE_PROGRAM="$root/$venv/bin/ninja" -DTAHR_SANITIZE=ON -DTAHR_SELFTEST=ON \
  -DTAHR_AMX_MODEL=ON \
  -DPython_EXECUTABLE="$root/$venv/bin/python" > /dev/null
$venv/bin/ninja -C $build

# The package as it stands in the tree, but with the sanitized module.
rm -rf $site
mkdir -p $site/tahr
for entry in tahr/*; do
  case $entry in *.so) ;; *) ln -s "$root/$entry" $site/tahr/ ;; esac
done
cp $build/_native*.so $site/tahr/

export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
echo "Self-test ..."
$build/selftest
echo "Op cases and fuzzed files ..."
LD_PRELOAD="$(${CXX:-g++} -print-file-name=libasan.so) $(${CXX:-g++} -print-file-name=libstdc++.so)" PYTHONPATH=$site TAHR_TESTS=all \
  $venv/bin/python -m pytest tests/backends/test_ops.py tests/kv/test_kv_q8.py tests/backends/test_threads.py tests/hostile/test_files_damaged.py tests/hostile/test_files_native.py --timeout 1200
echo "sanitize: clean"
