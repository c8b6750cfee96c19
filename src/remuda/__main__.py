"""`python -m remuda`: the same as the command `remuda`."""

from remuda.cli.main import main

if __name__ == "__main__":
    main()
