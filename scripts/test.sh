#!/usr/bin/env bash
# Two passes of pytest: with workers, then alone what measures time or keeps all cores busy (the mark `serial`).
# usage: scripts/test.sh PYTHON [options of pytest]     TESTS="tests/kv tests/engine" names others than all;
# TAHR_TESTS=all or nightly runs more of each (tests/helpers/tiers.py); WORKERS=n says how many instead of up to four.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

# Tests start many interpreters, which would compile everything anew each time.
unset PYTHONDONTWRITEBYTECODE
# One more than cores, because tests of servers wait; more than four gain little, because tests of one file stay together
# and many of them use every core for a moment.
workers=${WORKERS:-$("$python" -c 'import os; n = os.cpu_count() or 1; print(min(n + 1, 4) if n > 1 else 0)')}
read -ra tests <<< "${TESTS:-tests --ignore tests/parity}"
nothing=5 # pytest's exit code where no test was chosen

"$python" -m pytest "${tests[@]}" -m "not serial" -n "$workers" --dist loadfile "$@"
beside=$?
if [ "$beside" -gt 1 ] && [ "$beside" -ne $nothing ]; then exit "$beside"; fi # interrupted, or it could not start
"$python" -m pytest "${tests[@]}" -m serial "$@"
alone=$?
if [ "$alone" -eq $nothing ]; then exit "$beside"; fi
if [ "$beside" -eq $nothing ]; then exit "$alone"; fi
exit $((beside > alone ? beside : alone))
