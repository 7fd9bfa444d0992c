"""Benchmarks of the data path and of the training step, through the code that trains."""
