#!/bin/sh
# Prints the path of a working Python: `find-python.sh 3.13` that version, `find-python.sh any` 3.13 if there is one
# or else the newest of at least 3.11. Says nothing and exits 1 when there is none; `find-python.sh --explain` then
# says what was looked at and what to do.
#
# A name on PATH proves nothing: a version manager leaves a python3.13 there that only prints an error. So every
# candidate is run, and asked where it really lives.
set -u

oldest_minor=11
project=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

# Prints "3.MINOR PATH" for a candidate that runs, and nothing for one that does not. The path is that of the
# interpreter itself, never of a virtual environment made from it.
ask() {
    "$1" -E -S -c 'import os, sys
path = getattr(sys, "_base_executable", "") or sys.executable
print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], os.path.realpath(path)))' 2>/dev/null </dev/null
}

# One candidate on a line, most likely first.
candidates() {
    [ -n "${PYTHON:-}" ] && echo "$PYTHON"
    for name in "$@" python3 python; do
        command -v "$name" 2>/dev/null
    done
    for root in "${PYENV_ROOT:-}" "${HOME:-}/.pyenv"; do
        [ -d "$root/versions" ] && ls -d "$root"/versions/*/bin/python 2>/dev/null | sort -rV
    done
    for name in "$@"; do
        ls -d /usr/bin/"$name" /usr/local/bin/"$name" /opt/*/bin/"$name" 2>/dev/null
    done
}

# Finds exactly 3.$1.
find_minor() {
    candidates "python3.$1" | while read -r candidate; do
        found=$(ask "$candidate") || continue
        [ "${found%% *}" = "3.$1" ] && echo "${found#* }" && break
    done
}

# The package installer knows a few more places; it is asked last and never lets itself download one.
find_by_uv() {
    [ -x "$project/.tools/bin/uv" ] || return 0
    UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR="${UV_CACHE_DIR:-$project/.tools/cache}" \
        "$project/.tools/bin/uv" python find --system --no-project "3.$1" 2>/dev/null
}

find_version() {
    found=$(find_minor "$1")
    [ -n "$found" ] || found=$(find_by_uv "$1")
    [ -n "$found" ] && echo "$found"
}

# Finds the one named in $PYTHON if it will do, else 3.13, else the newest that is new enough.
find_any() {
    if [ -n "${PYTHON:-}" ]; then
        found=$(echo "$PYTHON" | newest) && [ -n "$found" ] && echo "$found" && return 0
    fi
    find_version 13 && return 0
    found=$(candidates python3.15 python3.14 python3.12 python3.11 | newest)
    [ -n "$found" ] && echo "$found"
}

# Reads candidates and prints the newest that is new enough.
newest() {
    while read -r candidate; do
        found=$(ask "$candidate") || continue
        version=${found%% *}
        [ "${version%%.*}" = 3 ] && [ "${version#3.}" -ge "$oldest_minor" ] && echo "${version#3.} ${found#* }"
    done | sort -rn -k1,1 -s | head -n 1 | cut -d ' ' -f 2-
}

explain() {
    echo "Python 3.$oldest_minor or newer is needed, and none was found. Looked at:"
    candidates python3.13 python3.12 python3.11 | sort -u | while read -r candidate; do
        found=$(ask "$candidate") || found='it does not run'
        echo "  $candidate: ${found%% /*}"
    done
    echo "Install one (on Debian or Ubuntu: apt-get install python3 python3-venv; with pyenv: pyenv install 3.13),"
    echo "or name it: make PYTHON=/path/to/python3.13"
}

case ${1:-any} in
any) find_any ;;
3.*) find_version "${1#3.}" ;;
--explain) explain >&2 ;;
*)
    echo "usage: find-python.sh any | 3.MINOR | --explain" >&2
    exit 2
    ;;
esac
