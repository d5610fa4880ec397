#!/bin/sh
# Runs a command in a memory control group of so many bytes, version 1 or 2, and says on stderr what it took at most.
# in_cgroup.sh BYTES COMMAND...
# Ends with 77 where no group can be made.
set -eu

bytes=$1
shift
name=tahr-$$
if [ -w /sys/fs/cgroup/memory ]; then
    group=/sys/fs/cgroup/memory/$name limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes
else
    group=/sys/fs/cgroup/$name limit=memory.max peak=memory.peak
fi
mkdir "$group" 2>/dev/null && [ -w "$group/$limit" ] || {
    rmdir "$group" 2>/dev/null || true
    echo "no memory control group can be made here" >&2
    exit 77
}
echo "$bytes" >"$group/$limit"

status=0
sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@" || status=$?
echo "at most $(cat "$group/$peak" 2>/dev/null || echo '?') bytes" >&2
rmdir "$group"
exit $status
