"""The command line: the Typer app, its commands, and the line that a mistake ends in.

Results go to standard output, progress and errors to standard error. A user's mistake is one line and exit code 2. With
--json, standard output carries one JSON document and nothing else. Each command lives in a file of commands/, which
imports what the command needs when it runs.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from superbloom.commands import prepare
from superbloom.commands.console import printable
from superbloom.commands.demo import demo
from superbloom.commands.evaluate import evaluate
from superbloom.commands.examples import epilog
from superbloom.commands.extend import extend
from superbloom.commands.inspect import inspect
from superbloom.commands.plan import plan
from superbloom.commands.predict import predict
from superbloom.commands.recommend import recommend
from superbloom.commands.reproduce import reproduce
from superbloom.commands.serve import serve
from superbloom.commands.similar import similar
from superbloom.commands.train import train
from superbloom.errors import InputError, is_out_of_memory
from superbloom.runtime import is_main_process
from superbloom.runtime.addresses import address_limit, check_imports
from superbloom.version import __version__

app = typer.Typer(
    help="A Transformer for catalogues of ids too large for a softmax: Wikipedia entities, products, words.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=epilog("demo"))(demo)
app.add_typer(prepare.app, name="prepare")
for command in (train, evaluate, predict, similar, serve, recommend, extend, inspect, plan, reproduce):
    app.command(epilog=epilog(command.__name__))(command)


def main() -> None:
    """Run a command; a user's mistake or a failing disk ends in one line and exit code 2."""
    try:
        check_imports()
        app()
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        _fail(f"{error.strerror or error}{place}; {_remedy(error)}")
    except (MemoryError, RuntimeError, ImportError) as error:
        if "gloo" in str(error) or "NCCL" in str(error):
            _fail("another process of this training ended; see its message, and continue with --resume")
        if not is_out_of_memory(error):
            raise
        limited = "" if address_limit() is None else "raise ulimit -v, "
        _fail(f"out of memory; {limited}lower --batch-size, --logits-mb or --dim, or raise --alpha")


def _remedy(error: OSError) -> str:
    """What to do about a file or a disk that fails."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
        return "make room or choose another --out, and run the command again"
    if isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return "check the path and its permissions, and run the command again"
    return "check the disk or the connection, and run the command again"


def _fail(message: str) -> None:
    where = "" if is_main_process() else f" in process {os.getpid()}"
    typer.echo(f"error{where}: {printable(' '.join(message.splitlines()))}", err=True)
    sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"superbloom {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    try:
        Path.cwd()
    except FileNotFoundError:  # torch's libraries would end the process
        raise InputError("the current folder was removed; change to another one, and run the command again") from None
