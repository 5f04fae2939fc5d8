# The shell in which torchx starts torchrun reads this first (BASH_ENV in .torchxconfig): torchx may have been called by
# its path, .venv/bin/torchx, while .venv is not activated, and then torchrun is not on PATH.
unset BASH_ENV
if ! command -v torchrun >/dev/null; then
    PATH=$PWD/.venv/bin:$PATH
    command -v torchrun >/dev/null || {
        echo "error: torchrun is not on PATH: type 'make setup', then 'source .venv/bin/activate', then the same again" >&2
        exit 2
    }
fi
