#!/bin/sh
# Runs the data tests, a minute, on every other suitable Python that this machine has: what one version
# passes, another has failed. Those tests need no torch, whose CPU build does not exist for every Python on every index.
#
# The environments stand in .venvs/ and are kept; each is made again when a pin has changed. The last line says which
# versions were tried.
set -eu
cd "$(dirname "$0")/.."

TESTS="tests/config tests/dataset tests/sources tests/prepare bert4rec/dataset bert4rec/sources bert4rec/prepare tests/runtime/test_files.py"
log=logs/test-pythons.log
HEAVY='^(torch|torchrec|fbgemm-gpu|torchx|tensorboard|matplotlib)[=>]'

say() { printf 'test-pythons: %s\n' "$*"; }

# The version and the interpreter itself, for CPython 3.11 to 3.13.
probe='
import os, sys
import venv
if not (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.implementation.name != "cpython": sys.exit(1)
print("%d.%d.%d" % sys.version_info[:3], os.path.realpath(sys._base_executable))'

candidates() {
    for name in python3 python3.11 python3.12 python3.13; do
        command -v "$name" || :
    done
    for path in /usr/bin/python3 /usr/local/bin/python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
        [ ! -x "$path" ] || echo "$path"
    done
}

ready=$(.venv/bin/python -V | cut -d' ' -f2)
wanted=$({ cat requirements.lock && .venv/bin/python scripts/requirements.py && pwd -P; } | cksum)
tried=$ready
found=$(candidates | while read -r path; do "$path" -c "$probe" 2>/dev/null || :; done | sort -u -k1,1)

while read -r version python; do
    [ -n "$version" ] && [ "$version" != "$ready" ] || continue
    home=.venvs/$version
    if [ "$(cat "$home/.stamp" 2>/dev/null)" != "$wanted" ]; then
        say "making $home with $python"
        rm -rf "$home"
        mkdir -p .venvs logs
        "$python" -m venv --without-pip "$home"
        .venv/bin/python scripts/requirements.py | grep -Ev "$HEAVY" >"$home/requirements.txt"
        .venv/bin/python -m pip --python "$home/bin/python" --disable-pip-version-check --no-input install \
            -c requirements.lock -r "$home/requirements.txt" hypothesis pytest pytest-timeout \
            </dev/null >"$log" 2>&1 || { say "pip failed: see $log" >&2 && exit 1; }
        echo "$wanted" >"$home/.stamp"
    fi
    say "Python $version ($python)"
    # shellcheck disable=SC2086  # a list of paths
    "$home/bin/python" -m pytest -q -p no:cacheprovider $TESTS </dev/null
    tried="$tried $version"
done <<END
$found
END

say "Python versions tried: $tried ($ready: all tests; the others: $TESTS)"
