"""A fleet over weeks, to weigh policies: what breaks, what recovery saves, and what one change would gain."""
