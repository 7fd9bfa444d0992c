"""The Lightning module, its callbacks and its checkpoints."""
