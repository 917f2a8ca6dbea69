"""The `graphd` command. Each group of commands is a module with a typer app; heavy imports wait until it runs."""


def main() -> None:
    """The entry point; builds the parser only now, so that importing this package costs nothing."""
    from graphd.cli.app import app

    app()
