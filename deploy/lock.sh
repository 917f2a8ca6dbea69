#!/bin/sh
# Writes deploy/requirements.txt (what a router or a repair daemon needs), deploy/requirements-dev.txt (the tests and
# `graphd dev` as well) and deploy/requirements-build.txt (what builds the image) from pyproject.toml: every package at one
# version, with its hashes, for Python 3.11 and later.
# Run it after a change of the dependencies. With --upgrade it takes the newest versions; without, it keeps those it can.
set -eu
cd -- "$(dirname -- "$0")/.."

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
trap 'exit 1' HUP INT TERM
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet uv

lock() { # file, source, options
    file=$1 source=$2
    shift 2
    "$work/venv/bin/uv" pip compile "$source" --quiet --universal --python-version 3.11 --fork-strategy fewest \
        --generate-hashes --no-header --no-annotate --output-file "$file" "$@"
}
lock deploy/requirements-dev.txt pyproject.toml --extra dev "$@"
# The dev lock constrains the others, so that the tests run against the versions that are deployed.
lock deploy/requirements.txt pyproject.toml --extra fast --constraint deploy/requirements-dev.txt
sed -n 's/^requires = \["\(.*\)"\]$/\1/p' pyproject.toml >"$work/build.in"
lock deploy/requirements-build.txt "$work/build.in" --constraint deploy/requirements-dev.txt
