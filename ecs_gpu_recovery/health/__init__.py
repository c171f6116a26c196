"""The `gpu-health` program: is this node's GPU hardware fit to train, and if not, would a reboot help?

It runs on the node itself, in a container or by hand, and needs nothing but Python. Its exit code is the
verdict (0 healthy, 1 reboot, 2 replace, 3 could not be tested); its report holds the evidence.
"""
