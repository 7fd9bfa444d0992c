"""Train by a recipe: ``python train.py recipe=NAME key=value ...`` (the same as ``fasttrain train``)."""

import sys

from fasttrain.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
