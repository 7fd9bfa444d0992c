"""Train image classifiers to a target accuracy in the least time, and prove it."""

__version__ = "0.1.0"
