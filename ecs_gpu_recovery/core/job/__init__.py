"""A job: the table of its states and facts, the rules, and what follows from where all its ranks stand."""
