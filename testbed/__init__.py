"""Worlds to test in: a small one, searched to its last state; hostile nights by seed; a simulated AWS. Not shipped."""
