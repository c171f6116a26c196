"""Who may come in: signing in, the door every request passes, and what was done by whom."""
