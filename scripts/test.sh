#!/usr/bin/env bash
# Two passes of pytest: with workers, then alone what measures time or keeps all cores busy (the mark `serial`).
# usage: scripts/test.sh PYTHON [options of pytest]     TESTS="tests/kv tests/engine" names others than all;
# TAHR_TESTS=all or nightly runs more of each (tests/helpers/tiers.py); WORKERS=n says how many instead of up to four.
# A test that reads a clock fails where the machine is busy with something else, so it is tried once more, alone.
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
if [ "${TAHR_TESTS:-}" = all ]; then set -- --timeout 900 "$@"; fi # three times the examples, maybe on a busy machine
nothing=5 # pytest's exit code where no test was chosen

failed=.pytest_cache/v/cache/lastfailed # names of tests, as pytest keeps them; those that pass later leave it
rm -f "$failed"

"$python" -m pytest "${tests[@]}" -m "not serial" -n "$workers" --dist loadfile "$@"
beside=$?
if [ "$beside" -gt 1 ] && [ "$beside" -ne $nothing ]; then exit "$beside"; fi # interrupted, or it could not start
"$python" -m pytest "${tests[@]}" -m serial "$@"
alone=$?
if [ "$alone" -gt 1 ] && [ "$alone" -ne $nothing ]; then exit "$alone"; fi
if [ "$beside" -eq 1 ] || [ "$alone" -eq 1 ]; then
  echo "Trying again what failed and measures time ..."
  "$python" -m pytest "${tests[@]}" -m timed --last-failed --last-failed-no-failures none "$@"
  "$python" -c 'import json, sys; sys.exit(len(json.load(open(sys.argv[1]))) > 0)' "$failed"
  exit
fi
if [ "$alone" -eq $nothing ]; then exit "$beside"; fi
exit "$alone"
