"""`python -m flashnest`: the Hydra app of `flashnest.cli.run`, and nothing else."""

from flashnest.cli.run import main

if __name__ == "__main__":
    raise SystemExit(main())
