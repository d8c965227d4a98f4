"""The command ``dataloader``: one group, one module per subcommand."""

import importlib
import sys
from typing import Any

_EXTRAS = {"click", "rich", "PIL"}
_COMMANDS = {"bench": "dataloader.bench.command", "demo": "dataloader.demo"}


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    try:
        _group()(prog_name="dataloader")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        sys.exit(
            f"dataloader: the command line needs {error.name}, which is not installed.\n"
            'Try: pip install "supervised-dataloader[cli,images]"'
        )


def _group() -> Any:
    import click

    class Commands(click.Group):
        """Imports a command when it is asked for: each has needs of its own."""

        def list_commands(self, context: click.Context) -> list[str]:
            return [*_COMMANDS]

        def get_command(self, context: click.Context, name: str) -> click.Command | None:
            if name not in _COMMANDS:
                return None
            command: click.Command = getattr(importlib.import_module(_COMMANDS[name]), name)
            return command

    return Commands(help="A data loader whose workers may die.")
