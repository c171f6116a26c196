"""Two simulations: hostile nights around the real control plane, and fleets over weeks to weigh policies."""
