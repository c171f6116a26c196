"""The pure heart: facts in, decisions out. Standard library only; no clock, no I/O, no randomness."""
