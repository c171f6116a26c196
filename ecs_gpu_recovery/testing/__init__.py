"""Worlds to test in: a small one that is searched to its last state, and a simulated AWS."""
