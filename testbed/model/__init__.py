"""A small world that is searched to its last state."""
