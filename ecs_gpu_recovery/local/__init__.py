"""The embedded mode: nodes as supervised processes on this machine, state in files and SQLite."""
