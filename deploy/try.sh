#!/bin/sh
# Shows graphd at work: `sh deploy/try.sh` starts a cluster of its own on this machine, walks through it and deletes it.
# Needs Python 3.11 or later; everything else is installed into .venv in the checkout. The arguments are those of
# `graphd demo` (see `sh deploy/try.sh --help`), relative paths count from where it was called.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/deploy/environment.sh"
exec graphd demo "$@"
