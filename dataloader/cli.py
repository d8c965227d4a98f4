"""The command ``dataloader``: one group, one module per subcommand."""

import sys

_EXTRAS = {"click", "rich", "PIL"}


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    try:
        import click

        from dataloader.demo import demo
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        sys.exit(
            f"dataloader: the command line needs {error.name}, which is not installed.\n"
            'Try: pip install "supervised-dataloader[cli,images]"'
        )
    click.Group(commands=[demo], help="A data loader whose workers may die.")(prog_name="dataloader")
