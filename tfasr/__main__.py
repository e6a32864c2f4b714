"""Runs the command line as ``python -m tfasr``, if ``tfasr`` isn't on the path."""

from tfasr.cli import main

if __name__ == "__main__":
    main()
