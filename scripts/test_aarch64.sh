#!/bin/sh
# Runs the native self-test for Arm on another processor: cross-compiles it and runs it in an emulator.
set -eu
cd "$(dirname "$0")/.."

for tool in aarch64-linux-gnu-g++ qemu-aarch64 cmake ninja; do
  if ! command -v "$tool" > /dev/null; then
    echo "SKIP: $tool is not installed, so the Arm kernels are not tested here."
    exit 0
  fi
done

build=build/aarch64
cmake -S . -B "$build" -G Ninja -DTAHR_PYTHON=OFF -DTAHR_SELFTEST=ON \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ > /dev/null
ninja -C "$build" selftest

# The emulator's "max" processor has every extension; each set of kernels is asked for by name.
for isa in scalar neon_dotprod neon_i8mm; do
  qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu "$build/selftest" "$isa"
done
