"""`python -m int8cal`."""

import sys

from int8cal.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
