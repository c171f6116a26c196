"""What is asked on a node: the driver, the kernel log, DCGM, the host."""
