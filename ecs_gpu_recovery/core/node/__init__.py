"""A node that no job holds: its own small life."""
