"""The typed configuration of a run: schema, composition with Hydra, validation."""
