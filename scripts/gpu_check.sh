#!/usr/bin/env bash
# Everything that needs a GPU: the backend's tests, requests that share an engine, then speed beside vLLM's.
# Builds and installs nothing. Test tools that are missing here may lie in wheels/ as pure-Python wheels; whole engines
# need the test data beside the checkout. STEPS="tests", "sanitize" or "cells" does one part (default: tests and cells);
# arguments go to gpu_cells.py.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
extra=$(mktemp -d)
trap 'rm -rf "$extra"' EXIT
for wheel in wheels/*.whl; do
    [ -e "$wheel" ] && "$python" -m zipfile -e "$wheel" "$extra"
done
export PYTHONPATH=. TAHR_TESTS=all TAHR_TEST_OFFLINE=1 PYTHONUNBUFFERED=1 PYTEST_TIMEOUT=60
# The machine's own packages win; what lies in wheels/ fills the gaps.
launch='import runpy, sys; sys.path.append(sys.argv.pop(1)); sys.argv.pop(0); runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)'
# Backends, then what runs on them. The first is alone on the card, since it counts its memory; compiling kernels is
# what takes time in the others, so they run side by side.
tests=(
    "cuda tests/cuda/test_cuda_options.py tests/cuda/test_cuda_cards.py"
    "reference,cuda tests/backends/test_ops.py tests/backends/test_ops_families.py tests/backends/test_ops_rows.py"
    "reference,cuda tests/cuda/test_cuda.py -k adapters"
    "reference,cuda tests/cuda/test_cuda.py -k not(adapters)"
    "reference,cuda tests/cuda/test_cuda_attention.py -k decode_attention"
    "reference,cuda tests/cuda/test_cuda_attention.py -k not(decode_attention)"
    "reference,cuda tests/cuda/test_cuda_steps.py tests/kv/test_state_memory.py"
    "reference,cuda tests/cuda/test_cuda_compiling.py tests/cuda/test_cuda_ahead.py"
    "reference,cuda tests/cuda/test_cuda_packed.py tests/weights/test_quantised_checkpoints.py"
    "reference,cuda tests/cuda/test_cuda_profile.py tests/backends/test_profile.py"
    "reference,cuda tests/models/test_plan.py tests/models/test_models.py"
    "cuda tests/engine/test_engine.py tests/models/test_families.py"
    "cuda tests/engine/test_windows.py tests/cuda/test_cuda_hopper.py"
    "cuda tests/engine/test_speculation.py tests/grammar/test_grammar.py"
    "reference,cuda tests/models/test_encoders.py tests/models/test_bidirectional.py tests/weights/test_quantised_checkpoints.py"
    "reference,cuda tests/library/test_encoder_llm.py -k every_backend"
    "reference,cuda tests/weights/test_lora_files.py tests/cuda/test_cuda_lora.py"
    "cuda tests/rows/test_row_inputs.py tests/rows/test_row_events.py tests/executor/test_row_plans.py"
    "cuda tests/engine/test_lora_engine.py"
    "cuda tests/kv/test_kv_q8.py tests/kv/test_prefix.py tests/kv/test_kv_pages.py tests/cuda/test_cuda_pages.py"
    "cuda tests/sampling/test_sampler.py tests/sampling/test_sample_op.py tests/cuda/test_cuda_sampling.py tests/cuda/test_cuda_logprobs.py"
)
failed=0

run_tests() { # number, backends, files...
    local log="$extra/$1.log" begin=$SECONDS
    export TAHR_TEST_BACKENDS=$2
    shift 2
    timeout "${TEST_S:-280}" "$python" -c "$launch" "$extra" pytest "$@" -q --maxfail=12 --tb=short --no-header \
        -p no:cacheprovider -r fE --durations=4 >"$log" 2>&1
    local status=$?
    echo "exit $status after $((SECONDS - begin)) s: $*" >>"$log"
    return $status
}

"$python" -c "import torch, triton; print('torch', torch.__version__, 'triton', triton.__version__)"
if [[ ${STEPS:-tests cells} == *tests* ]]; then
    jobs=()
    for i in "${!tests[@]}"; do
        run_tests "$i" ${tests[$i]} &
        jobs+=($!)
        [ "$i" -eq 0 ] && { wait $! || failed=1; }
    done
    for job in "${jobs[@]:1}"; do wait "$job" || failed=1; done
    for i in "${!tests[@]}"; do
        echo "=== ${tests[$i]}"
        tail -n "${TEST_LINES:-40}" "$extra/$i.log"
    done
fi
if [[ ${STEPS:-tests cells} == *sanitize* ]]; then
    # A few tests of every kind of kernel: bad accesses, then races in shared memory. Torch asks the driver for every
    # tensor, so that one which ends too early is found.
    kernels="half_linear and 5 or half_experts and 2 or decode_attention and decode0 or prefill_attention or 8_bit or gated"
    kernels+=" or behind_matrices and 17 or mixed_rows and 300 or mask_of_nothing or of_another"
    # Where warps of a program have tasks of their own, races are reported that are none: in the vendor's products of
    # 8-bit floats, and where Triton hands a task its numbers, between two barriers. A test of equal bits stands for these.
    tasks="of_another or 8_bit_floats and (17 or 32 or 33 or 40 or 200 or 300)"
    sanitize() { # tool, tests
        TAHR_TEST_BACKENDS=reference,cuda PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTEST_TIMEOUT=0 \
            timeout "${SANITIZE_S:-90}" compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 \
            "$python" -c "$launch" "$extra" pytest tests/cuda/test_cuda.py tests/cuda/test_cuda_attention.py tests/cuda/test_cuda_hopper.py \
            tests/cuda/test_cuda_packed.py tests/cuda/test_cuda_lora.py tests/sampling/test_sample_op.py -k "$2" -q -x --no-header \
            -p no:cacheprovider >"$extra/$1.log" 2>&1
    }
    sanitize memcheck "$kernels" &
    job=$!
    sanitize racecheck "($kernels) and not ($tasks)" || failed=1
    wait $job || failed=1
    for tool in memcheck racecheck; do
        echo "=== compute-sanitizer --tool $tool"
        tail -n 12 "$extra/$tool.log"
    done
fi
if [[ ${STEPS:-tests cells} == *cells* ]]; then
    timeout 230 "$python" benchmarks/gpu_cells.py "$@" 2>&1 | tail -n 60 || failed=1
fi
exit $failed
