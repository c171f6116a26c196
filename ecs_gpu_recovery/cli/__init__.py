"""The gpu-recovery command."""
