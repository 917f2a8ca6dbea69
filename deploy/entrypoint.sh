#!/bin/sh
# Runs a command of graphd in a container. PGPASSWORD_FILE names a file (a secret) that holds the password of the databases;
# it reaches libpq without standing in the configuration or in what `docker inspect` shows.
set -eu
if [ -n "${PGPASSWORD_FILE:-}" ]; then
    PGPASSWORD=$(cat -- "$PGPASSWORD_FILE")
    export PGPASSWORD
fi
exec "$@"
