"""The part that stays on a node and tells of a fault the moment it happens."""
