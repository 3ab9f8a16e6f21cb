#!/usr/bin/env bash
# Print the path of an interpreter that the library can embed, or say why each candidate is refused.
#
# usage: tools/find_python.sh [ENVIRONMENT]
#
# With PYTHON set, only that one is tried. Otherwise the Python behind ENVIRONMENT, then those on
# PATH, then Debian's. What fits is decided by tools/check_python.py.
set -euo pipefail

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wanted='CPython 3.11 to 3.13'
# Runs under any Python, however old: the real check needs a recent one.
version_program='import platform, sys
print("%s %d.%d.%d" % ((platform.python_implementation(),) + tuple(sys.version_info[:3])))'
tried=' '
refusals=()
found=

# Set found to the interpreter behind candidate $1, or note why it does not fit.
try() {
    local path version answer
    if ! path=$(command -v -- "$1"); then
        refusals+=("$1: not found")
        return 1
    fi
    case $tried in *" $path "*) return 1 ;; esac
    tried+="$path "
    if ! version=$("$path" -Es -c "$version_program" 2>/dev/null); then
        answer=$("$path" -Es -c "$version_program" 2>&1 | head -n 1) || true
        refusals+=("$path: does not run: ${answer:-no word why}")
        return 1
    fi
    case $version in
        'CPython 3.11.'* | 'CPython 3.12.'* | 'CPython 3.13.'*) ;;
        *)
            refusals+=("$path: is $version; $wanted is needed")
            return 1
            ;;
    esac
    if ! answer=$("$path" -Es "$tools/check_python.py" 2>/dev/null); then
        answer=$("$path" -Es "$tools/check_python.py" 2>&1) || true
        refusals+=("$path: is $version, but ${answer:-its check failed without a word}")
        return 1
    fi
    found=$answer
}

if [ -n "${PYTHON:-}" ]; then
    candidates=("$PYTHON")
else
    candidates=(python3 python3.13 python3.12 python3.11 /usr/bin/python3)
    if [ -x "${1:-}/bin/python" ]; then
        candidates=("$1/bin/python" "${candidates[@]}")
    fi
fi
for candidate in "${candidates[@]}"; do
    if try "$candidate"; then
        printf '%s\n' "$found"
        exit 0
    fi
done

{
    if [ -n "${PYTHON:-}" ]; then
        echo "error: the Python given as PYTHON does not fit:"
    else
        echo "error: no Python on this machine fits:"
    fi
    printf '  %s\n' "${refusals[@]}"
    echo "needed: $wanted, built with a shared libpython, with its headers and venv"
    packages='python3-dev python3-venv'
    command -v cc >/dev/null || packages+=' gcc libc6-dev'
    command -v make >/dev/null || packages+=' make'
    echo "remedy: on Debian and Ubuntu, as root: apt-get install $packages"
    echo "        or name another one: make setup PYTHON=/path/to/python3.12"
    echo "        (built from source: configure it with --enable-shared)"
} >&2
exit 1
