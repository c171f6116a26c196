"""The HTTP API: its routes, the shapes of what goes in and out, and lists in pages."""
