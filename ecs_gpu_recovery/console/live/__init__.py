"""What changes while people look: one shared look at the backend, and a stream of events from it."""
