"""``python -m dataloader``: the same as the command ``dataloader``."""

from dataloader.cli import main

if __name__ == "__main__":
    main()
