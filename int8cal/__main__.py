"""`python -m int8cal`."""

from int8cal.cli.main import entry

if __name__ == "__main__":
    entry()
