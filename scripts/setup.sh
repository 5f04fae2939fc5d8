#!/bin/sh
# Makes .venv, the Python environment of every `make` target, and returns at once where it is ready.
#
#   PYTHON=python3.12        the interpreter to make it with (default: the first suitable one on PATH)
#   TORCH_BUILD=cpu|cuda     the build of torch and fbgemm (default: cuda where there is an NVIDIA GPU and its driver)
#
# POSIX sh, because it runs before there is a Python. .venv is ready if .venv/.stamp holds the checksum of what it is
# made from, and if it was made with PYTHON, where that is set. The stamp is written last, so an interrupted or failed run
# never counts as ready.
set -eu
cd "$(dirname "$0")/.."
log=logs/setup.log

say() { printf 'setup: %s\n' "$*"; }
fail() {
    say "$@" >&2
    exit 1
}

# --- What is wanted, and is it there? -------------------------------------------------------------------------------
[ "$(uname -s)" = Linux ] || fail "TorchRec has wheels for Linux only and this is $(uname -s): use Linux, a container or WSL2."
case "$(uname -m)" in
x86_64 | aarch64) ;;
*) fail "TorchRec has wheels for x86_64 and aarch64 only and this is $(uname -m): use another machine." ;;
esac

# The device file, not /proc/driver/nvidia: a container started without the GPU sees the latter too. fbgemm-gpu has no
# wheel for aarch64.
if [ -n "${TORCH_BUILD:-}" ]; then
    build=$TORCH_BUILD
elif [ "$(uname -m)" = x86_64 ] && { [ -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null 2>&1; }; then
    build=cuda
else
    build=cpu
fi
case $build in cpu | cuda) ;; *) fail "TORCH_BUILD is cpu or cuda, not '$build'." ;; esac

# With the folder's own path: a virtual environment cannot be moved, so a moved or copied one is made again.
# Of pyproject.toml what pip reads, which stands first.
wanted=$({ cat requirements.lock && sed '/^\[tool\.ruff/q' pyproject.toml && echo "$build $(pwd -P)"; } | cksum)

# Prints the interpreter itself: not a shim and not the python of an activated .venv, which is about to be replaced.
probe='
import os, sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.implementation.name != "cpython": sys.exit(1)
try: import ensurepip, venv
except ImportError: print("no-venv %d.%d" % sys.version_info[:2])
else: print(os.path.realpath(sys._base_executable))'

made_with_wanted_python() {
    [ -z "${PYTHON:-}" ] || [ "$(.venv/bin/python -c "$probe" 2>/dev/null)" = "$("$PYTHON" -c "$probe" 2>/dev/null)" ]
}
ready() { [ -x .venv/bin/python ] && [ "$(cat .venv/.stamp 2>/dev/null)" = "$wanted" ] && made_with_wanted_python; }
ready && exit 0

# --- A Python that can make it --------------------------------------------------------------------------------------
if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
    none="PYTHON=$PYTHON does not run as CPython 3.11, 3.12 or 3.13: name one that does."
else
    set -- python3 python3.11 python3.12 python3.13
    none="no Python 3.11, 3.12 or 3.13 found: install one with its venv module, or name it with PYTHON=/path/to/python3."
fi
python=
for name; do
    # Each is run, not only looked up: a name on PATH may be a shim of a version that is not installed.
    found=$("$name" -c "$probe" 2>/dev/null) || continue
    case $found in
    no-venv*) none="Python ${found#no-venv } has no venv module: install it (Debian, Ubuntu: python${found#no-venv }-venv)." ;;
    *) python=$found && break ;;
    esac
done
[ -n "$python" ] || fail "$none"

# --- One at a time --------------------------------------------------------------------------------------------------
# The lock belongs to the open file 9, so it lives as long as this shell. A file system without locks: none is held.
mkdir -p logs
exec 9>>"$log"
"$python" -c '
import fcntl
try: fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("setup: waiting for another one to finish", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
except OSError: pass'
ready && exit 0

# --- Make it --------------------------------------------------------------------------------------------------------
torch=$(sed -n 's/^ *"\(torch==.*\)",$/\1/p' pyproject.toml)

# Every line goes to the log; large downloads and the last step are shown, as they take most of the minutes.
install() {
    {
        .venv/bin/python -m pip --disable-pip-version-check --no-input install \
            -c requirements.lock -e ".[dev,onnx,sql,lake,excel,serve,mcp,ann]" "$@" 2>&1 &&
            : >.venv/.installed
    } | while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        case $line in
        *Downloading*[0-9][0-9].[0-9]" MB)"*) say "downloading ${line#*Downloading }" ;;
        *"Installing collected packages"*) say "installing: a minute or two" ;;
        esac
    done
    rm .venv/.installed 2>/dev/null
}
# pip calls an index that it cannot reach "no matching distribution" too, but then it has retried or has seen no versions.
unreachable() { grep -Eq 'Retrying \(|from versions: none|HTTP error|TimeoutError|IncompleteRead|ConnectionPool|Connection.*Error' "$log"; }
pip_failed() {
    unreachable && fail "pip could not fetch the packages: check the network and pip's index settings, then run this again (log: $log)."
    fail "pip failed: $(grep '^ERROR' "$log" | tail -n 1) (log: $log)"
}

say "making .venv with $("$python" -V), $build build: some minutes, once (log: $log)"
: >"$log"
[ ! -L .venv ] || rm .venv # else the folder behind the link would be emptied
rm -f .venv/.stamp
"$python" -m venv --clear .venv >>"$log" 2>&1 || fail "'$python -m venv' failed: see $log."

if [ "$build" = cuda ]; then
    install || pip_failed
else
    ./scripts/stand_in.sh .venv/fbgemm-gpu
    if ! install "$torch+cpu" ./.venv/fbgemm-gpu; then
        grep -qF "No matching distribution found for $torch+cpu" "$log" && ! unreachable || pip_failed
        say "pip's indexes have no CPU build of $torch for this Python: installing the CUDA build, several GB, which also" \
            "runs on a CPU (to avoid it, add PyTorch's CPU index to pip's settings or use another Python)"
        install ./.venv/fbgemm-gpu || pip_failed
    fi
fi
.venv/bin/python -m pip check >>"$log" 2>&1 || fail "the installed packages do not fit together: see $log."
.venv/bin/python -c 'import torch, fbgemm_gpu' >>"$log" 2>&1 || fail "torch and fbgemm do not load here: see $log."
echo "$wanted" >.venv/.stamp
say ".venv is ready"
