"""Learning rate and momentum at a step: pure functions."""
