"""``python -m tfasr``: the command line, where the script ``tfasr`` is not on the path."""

from tfasr.cli import main

if __name__ == "__main__":
    main()
