"""A simulated ECS and SSM for tests: in process with virtual time, or in a local AWS (docs/testbed.md)."""
