"""Runs the command line as ``python -m tfasr``, in case the ``tfasr`` script isn't on
the path.
"""

from tfasr.cli import main

if __name__ == "__main__":
    main()
