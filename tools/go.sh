#!/usr/bin/env bash
# Run the Go tool in go_example against the library in build/.
#
# usage: tools/go.sh ARGUMENTS      e.g. tools/go.sh test ./...
#        tools/go.sh with COMMAND   a command that calls the Go tool itself
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
header=$root/build/include/semantic.h
if [ ! -e "$header" ]; then
    echo "error: $header is not there; run: make build" >&2
    exit 1
fi
go=$("$root/tools/find_go.sh")
hash=$(sha256sum <"$header")

export GOTOOLCHAIN=local CGO_ENABLED=1
# Go's build cache does not look into headers outside its module: without their hash among the
# flags, a changed struct would meet code compiled for the old one.
export CGO_CFLAGS="-O2 -g '-I$root/build/include' -DLIBSEMANTIC_HEADER_HASH=0x${hash:0:16}"
export CGO_LDFLAGS="'-L$root/build/lib' -lsemantic '-Wl,-rpath,$root/build/lib'"
export PKG_CONFIG_PATH=$root/build/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}

cd "$root/go_example"
if [ "${1-}" = with ]; then
    PATH=$(dirname "$go"):$PATH exec "${@:2}"
fi
exec "$go" "$@"
