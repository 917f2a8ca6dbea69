#!/bin/sh
# Writes deploy/requirements.txt (what a router or a repair daemon needs) and deploy/requirements-dev.txt (the tests and
# `graphd dev` as well) from pyproject.toml: every package at one version, with its hashes, for Python 3.11 and later.
# Run it after a change of the dependencies. With --upgrade it takes the newest versions; without, it keeps those it can.
set -eu
cd -- "$(dirname -- "$0")/.."

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
trap 'exit 1' HUP INT TERM
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet uv

lock() { # file, extra, options
    file=$1 extra=$2
    shift 2
    "$work/venv/bin/uv" pip compile pyproject.toml --quiet --universal --python-version 3.11 --fork-strategy fewest \
        --generate-hashes --no-header --no-annotate --extra "$extra" --output-file "$file" "$@"
}
lock deploy/requirements-dev.txt dev "$@"
# The dev lock constrains the other, so that the tests run against the versions that are deployed.
lock deploy/requirements.txt fast --constraint deploy/requirements-dev.txt
