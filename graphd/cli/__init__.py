"""The `graphd` command. Each group of commands is a module with a typer app; heavy imports wait until it runs."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; answers the exit status. Builds the parser only now, so that importing this package costs nothing."""
    import typer

    from graphd.cli.app import app
    from graphd.cli.misuse import USAGE_ERROR, tell

    try:
        # Outside of typer's own mode errors come to us, an exit status is returned, and so is what a command returns: None.
        status: int | None = app(args=arguments, prog_name="graphd", standalone_mode=False)
    except USAGE_ERROR as fault:
        tell(fault)
        return 2
    except typer.Abort:
        return 1
    return status or 0
