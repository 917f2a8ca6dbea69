#!/bin/sh
# Runs the tests: `sh tests/run.sh`, with any arguments of pytest (`--long` for the long simulations, `-n 2` for two at
# once). TEST_DATA is the folder of the real graphs; tests that need it are skipped where there is none.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/deploy/environment.sh"
if [ -z "${TEST_DATA+set}" ] && [ -d "$root/../shared/data" ]; then
    TEST_DATA=$(cd -- "$root/../shared/data" && pwd -P)
    export TEST_DATA
fi
cd -- "$root"
exec "$python" -m pytest "$@"
