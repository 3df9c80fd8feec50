"""What a command says when it cannot go on: one paragraph on stderr and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from fedloom.capacity import ALLOCATION
from fedloom.errors import FedloomError

REFUSED, STOPPED = 2, 130
ARGUMENTS = "fedloom.arguments"
"""Where the words of the command line are kept, for a record of how a result was made."""

_SMALLER = "the machine has not enough memory for this; choose a smaller model, fewer clients or a part of the data"


class Halt(Exception):
    """The user stopped the work; the text says how to go on with it."""


class Guarded(TyperGroup):
    """Commands whose errors are said in words: exit code 2 for what cannot be, 130 after Ctrl-C."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remember the words before they are taken apart."""
        ctx.meta.setdefault(ARGUMENTS, list(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except FedloomError as error:
            _say(f"error: {error}", "red")
            raise typer.Exit(REFUSED) from error
        except Halt as halt:
            _say(str(halt), "yellow")
            raise typer.Exit(STOPPED) from halt
        except KeyboardInterrupt as stop:
            _say("stopped", "yellow")
            raise typer.Exit(STOPPED) from stop
        except MemoryError as error:
            _say(f"error: {_SMALLER}", "red")
            raise typer.Exit(REFUSED) from error
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _say(f"error: {where}{error.strerror or error}; the system refused this to fedloom", "red")
            raise typer.Exit(REFUSED) from error
        except RuntimeError as error:
            if ALLOCATION not in str(error):  # as torch says it
                raise
            _say(f"error: {_SMALLER}", "red")
            raise typer.Exit(REFUSED) from error
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # of click, which typer needs or, in later versions, contains
                _hint(error, ctx.meta[ARGUMENTS])
            raise


def interrupts(number: int, frame: object) -> None:
    """Ctrl-C: an interrupt, unless one is under way, when all that is left is to put things away and to say why."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt | Halt):
        error = error.__context__
    if error is None:
        raise KeyboardInterrupt


def unraisable(what: Any) -> None:
    """What Python cannot raise, in the clean-up of an object, it prints; an interrupt there is worth no traceback."""
    if not isinstance(what.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(what)


def _hint(error: Any, words: list[str]) -> None:
    """Say how a hyper-parameter is given, where an option that is not there has the name of one; or what is not yet."""
    from fedloom.execution import CPU_ONLY
    from fedloom.experiment.sections import method_form
    from fedloom.methods import REGISTER

    if error.option_name == "--device":
        error.message, error.possibilities = f"No such option '--device': {CPU_ONLY}", []
        return
    if not any("--set" in parameter.opts for parameter in error.ctx.command.params):
        return
    key = error.option_name.lstrip("-").replace("-", "_")
    for name in [name for name in REGISTER if name in words] or REGISTER:
        for field in (key, f"{key}_"):  # lambda is a word of Python's
            if field in method_form(name).fields:
                error.message = f"No such option {error.option_name!r}: write --set method.{field}=VALUE"
                error.possibilities = []
                return


def _say(message: str, style: str) -> None:
    if os.environ.get("FEDLOOM_DEBUG") == "1":
        traceback.print_exc()
    Console(stderr=True).print(Text(message, style=style), soft_wrap=True)
