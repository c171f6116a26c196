"""What people and tools ask for, once, with its local, AWS and remote sides."""
