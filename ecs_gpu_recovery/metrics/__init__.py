"""Numbers about nodes, jobs and the control plane: sampled, kept for a day, shown to other tools."""
