"""A small world around the real decisions, and a search through everything that can happen in it."""
