"""Parameter groups and the optimizers."""
