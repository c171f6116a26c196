"""From what was seen to findings, and from findings to one verdict."""
