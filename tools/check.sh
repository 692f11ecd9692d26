#!/usr/bin/env bash
# Runs all static checks: tools/check.sh VENV. Names the one that failed and the way to mend it.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=$1/bin
failed=0

step() { # step NAME HINT COMMAND...
    local name=$1 hint=$2 started=$SECONDS
    shift 2
    local output
    if output=$("$@" 2>&1); then
        echo "ok    $name ($((SECONDS - started)) s)"
    else
        echo "FAIL  $name: $hint"
        echo "$output" | tail -n 40
        failed=1
    fi
}

proto_drift() {
    local fresh
    fresh=$(mktemp -d)
    tools/protos.sh "$(dirname "$bin")" "$fresh" || return 1
    diff -r -x __init__.py -x __pycache__ "$fresh/baton/wire/v1" baton/wire/v1
    local status=$?
    rm -rf "$fresh"
    return $status
}

step "format" "make fmt" "$bin/ruff" format --check -q .
step "lint" "make fmt mends most of it" "$bin/ruff" check -q .
step "types" "mypy names file and line" "$bin/mypy"
step "import contracts" "see [tool.importlinter] in pyproject.toml" "$bin/lint-imports"
step "generated code" "make protos" proto_drift
exit $failed
