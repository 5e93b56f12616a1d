"""`python -m flashnest.cli`: the same as `flash-nest`, where the script is not on the PATH."""

from flashnest.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
