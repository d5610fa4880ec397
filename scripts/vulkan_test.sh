#!/usr/bin/env bash
# Tests of the Vulkan backend on lavapipe, which scripts/vulkan_tools.sh has put into .vulkan-tools; then some of them under
# the validation layer, which must have nothing to say.
# usage: scripts/vulkan_test.sh PYTHON TESTS AND OPTIONS OF PYTEST
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
export TAHR_VULKAN_DEVICE=llvmpipe TAHR_TEST_BACKENDS=reference,vulkan
.vulkan-tools/on-lavapipe "$python" -m pytest "$@"
heard=$(mktemp)
trap 'rm -f "$heard"' EXIT
VALIDATE=1 .vulkan-tools/on-lavapipe "$python" -m pytest -s tests/vulkan/test_vulkan_tape.py tests/models/test_plan.py \
    tests/vulkan/test_vulkan_products.py tests/vulkan/test_vulkan_attention.py \
    -k "not lies and not no_kernel and not full_device and (tape or llama or gemma3 or gpt2 or poison or (matrices and BF16) or case0)" > "$heard" 2>&1 || { cat "$heard"; exit 1; }
if grep -aE "Validation (Error|Warning)|VUID-" "$heard"; then
    echo "The validation layer has found this."
    exit 1
fi
echo "The validation layer is silent."
