#!/usr/bin/env bash
# Print the path of a Go tool, 1.22 or newer: the one on PATH, else one fetched into build/go.
#
# usage: tools/find_go.sh
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The Go tool must not replace itself by a downloaded one.
export GOTOOLCHAIN=local

# Succeed if the Go tool $1 is new enough; say so if it is not.
is_new_enough() {
    local version major minor
    version=$(cd "$root" && "$1" env GOVERSION) || return 1
    if [[ $version =~ go([0-9]+)\.([0-9]+) ]]; then
        major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]}
        if ((major > 1 || minor >= 22)); then
            return 0
        fi
    fi
    echo "$1 is ${version:-of an unknown version}; 1.22 or newer is needed" >&2
    return 1
}

if go=$(command -v go) && is_new_enough "$go"; then
    printf '%s\n' "$go"
    exit 0
fi
if [ ! -x "$root/build/env/bin/python" ]; then
    echo "error: Go is missing and build/env is not there to fetch it with; run: make setup" >&2
    exit 1
fi
"$root/build/env/bin/python" "$root/tools/fetch_go.py" "$root/build/go"
printf '%s\n' "$root/build/go/bin/go"
