"""The numbers of the queues between rules and functions. docs/decisions/0012-events-wait-in-queues.md says why."""

from __future__ import annotations

#: Each of the three functions that take events runs so many times at once; Lambda knows no smaller number.
FUNCTIONS_AT_ONCE = 2
#: As many events as a call of a function may hold, about: one has 2 to 6 KB, and the call 6 MB.
MOST_AT_ONCE = 1000
#: Who dies with others is taken with them; nobody waits longer for it than this.
WINDOW_S = 1
#: A message that was not taken comes again this long after the function is surely over,
MARGIN_S = 30
#: and so often, about half an hour in all: long enough for a deployment, or for a table to calm down.
TRIES = 12
