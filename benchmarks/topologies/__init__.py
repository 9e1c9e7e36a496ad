"""Real network topologies with seeded weights, one file each."""
