"""A simulated ECS and SSM, for tests: in process with virtual time, or plugged into a local AWS (docs/testbed.md)."""
