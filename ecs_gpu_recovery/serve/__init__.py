"""Runs things in this process: the embedded control plane, its demo, and the console beside it or alone."""
