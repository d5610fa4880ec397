#!/usr/bin/env bash
# Everything that needs a GPU: the backend's tests, then its speed beside vLLM's. Builds and installs nothing.
# Test tools that are missing here may lie in wheels/ as pure-Python wheels.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
extra=$(mktemp -d)
trap 'rm -rf "$extra"' EXIT
for wheel in wheels/*.whl; do
    [ -e "$wheel" ] && "$python" -m zipfile -e "$wheel" "$extra"
done
# The machine's own packages win; what lies in wheels/ fills the gaps.
export PYTHONPATH=. TAHR_TEST_BACKENDS=reference,cuda TAHR_TEST_OFFLINE=1 PYTHONUNBUFFERED=1
launch='import runpy, sys; sys.path.append(sys.argv.pop(1)); sys.argv.pop(0); runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)'
tests=(tests/test_ops.py tests/test_cuda.py tests/test_plan.py tests/test_models.py)

"$python" -c "import torch, triton; print('torch', torch.__version__, 'triton', triton.__version__)"
begin=$SECONDS
timeout 240 "$python" -c "$launch" "$extra" pytest "${tests[@]}" -q --maxfail=25 --tb=short --no-header \
    -p no:cacheprovider -r fE --durations=5 2>&1 | tail -n "${TEST_LINES:-150}"
tested=${PIPESTATUS[0]}
# Requests that share an engine must answer as if alone, on this backend too. Needs the data beside the checkout.
TAHR_TEST_BACKENDS=cuda timeout 200 "$python" -c "$launch" "$extra" pytest tests/test_engine.py tests/test_windows.py -q \
    --maxfail=25 --tb=short --no-header -p no:cacheprovider -r fEs 2>&1 | tail -n 40
tested=$((tested || PIPESTATUS[0])) tests_s=$((SECONDS - begin))
begin=$SECONDS
timeout 230 "$python" benchmarks/gpu_cells.py "$@" 2>&1 | tail -n 60
measured=${PIPESTATUS[0]} cells_s=$((SECONDS - begin))

echo
echo "step    exit  seconds"
printf '%-7s %4d  %7d\n' tests "$tested" "$tests_s" cells "$measured" "$cells_s"
exit $((tested || measured))
