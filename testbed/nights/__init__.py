"""Hostile nights around the real control plane, each replayed by its seed."""
