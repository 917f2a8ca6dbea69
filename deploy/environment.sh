# shellcheck shell=sh
# Sourced by deploy/try.sh, tests/run.sh and .ci/run, which set `root` to the checkout before. Makes $root/.venv and keeps
# it at what deploy/requirements-dev.txt locks; sets `python`; puts the environment's commands first on PATH.
# PYTHON names the interpreter to make it with; without it the first that fits of python3.13, 3.12, 3.11 and python3.

: "${root:?the path of the checkout}"

say() { printf 'graphd: %s\n' "$*" >&2; }

fail() {
    say "$@"
    exit 1
}

# An interpreter is tried, not looked up: a version manager's shim is on PATH for versions that it cannot start.
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Prints the interpreter that can make an environment, or ends the script with what to install.
find_python() {
    without_venv=
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3.13 python3.12 python3.11 python3
    fi
    for candidate; do
        is_new_enough "$candidate" || continue
        # Debian and Ubuntu keep ensurepip in a package of its own.
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
        without_venv=$candidate
    done
    if [ -n "$without_venv" ]; then
        version=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        fail "$without_venv lacks the venv module. Install it (Debian, Ubuntu: apt-get install python$version-venv)."
    elif [ -n "${PYTHON:-}" ]; then
        fail "PYTHON is $PYTHON, which is not a Python of version 3.11 or later."
    fi
    fail "Python 3.11 or later is needed, and none was found. Install it (Debian, Ubuntu: apt-get install python3" \
        "python3-venv), or name one: PYTHON=/path/to/python3.12 sh $0"
}

# Ends the script unless the caller may write to the environment: it may be someone else's checkout, or a read-only one.
check_writable() {
    if mkdir -p -- "$venv" 2>/dev/null && (: >"$venv/.graphd-writable") 2>/dev/null; then
        rm -f -- "$venv/.graphd-writable"
        return
    fi
    place=$root
    [ ! -d "$venv" ] || place=$venv
    listing=$(ls -ld -- "$place")
    read -r _ _ owner _ <<END
$listing
END
    fail "$(id -un) cannot write to $place (its owner is $owner). Clone the repository to a folder of your own, and run" \
        "this from there."
}

# What the environment was made from, and where.
fingerprint() {
    cat -- "$root/deploy/requirements-dev.txt" "$root/pyproject.toml" | cksum
    printf '%s\n' "$root"
}

# The commands inside name the interpreter by its full path, so they are lost when the checkout moves.
has_moved() { [ -f "$stamp" ] && [ "$(tail -n 1 -- "$stamp")" != "$root" ]; }

install() {
    check_writable
    if has_moved || ! is_new_enough "$python"; then
        base=$(find_python)
        say "making .venv with $("$base" --version)"
        "$base" -m venv --clear "$venv" || fail "$base could not make $venv."
    elif ! "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m ensurepip --default-pip >/dev/null || fail "$venv has no pip: delete it, and run this again."
    fi
    say "installing the locked packages into .venv: about a minute the first time"
    rm -f -- "$stamp"
    "$python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        -r "$root/deploy/requirements-dev.txt" || fail "the packages could not be installed: pip says why above."
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        -e "$root" || fail "graphd itself could not be installed: pip says why above."
    fingerprint >"$stamp"
}

unset PYTHONHOME PYTHONPATH
venv=$root/.venv
python=$venv/bin/python
stamp=$venv/.graphd-lock
if ! is_new_enough "$python" || [ ! -f "$stamp" ] || [ "$(fingerprint)" != "$(cat -- "$stamp")" ]; then
    install
fi
PATH=$venv/bin:$PATH
export PATH
