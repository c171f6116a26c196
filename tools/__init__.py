"""What the Makefile runs: environments, locks, tests and checks of the project itself."""
