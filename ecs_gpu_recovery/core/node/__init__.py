"""A node that no job holds: the table of its states and facts, and the rules of its own small life."""
