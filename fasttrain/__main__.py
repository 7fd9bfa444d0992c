"""``python -m fasttrain COMMAND ...``: the same as the console script."""

import sys

from fasttrain.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
