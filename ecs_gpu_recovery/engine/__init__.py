"""The only loop: facts in, one decision and one commit, orders out. It knows the outside world by its ports only."""
