"""Training programs to try the recovery with, and to copy from."""
