#!/bin/sh
# Runs one of the helper modules of this folder: `run.sh tools.lock --check`. They need nothing but the standard
# library, so any Python that is new enough will do; the project's own is the quickest to find.
set -eu
cd -- "$(dirname -- "$0")/.."

if [ -e .venv/.ready ] && [ -x .venv/bin/python ]; then
    python=.venv/bin/python
elif ! python=$(sh tools/find-python.sh any); then
    sh tools/find-python.sh --explain
    exit 1
fi
exec "$python" -m "$@"
