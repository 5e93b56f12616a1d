"""`flash-nest policy ...`: the policy tools on the command line, one module a command.

Output is plain text, never wrapped or coloured, so that carets stay under what they point at and logs can be compared.
"""

from __future__ import annotations

import os

import typer

from flashnest.cli.policy.bench import bench
from flashnest.cli.policy.check import check
from flashnest.cli.policy.diff import diff
from flashnest.cli.policy.explain import explain
from flashnest.cli.policy.fmt import fmt
from flashnest.cli.policy.plan import plan
from flashnest.cli.policy.simulate import simulate
from flashnest.cli.policy.test import run_policy_tests
from flashnest.cli.policy.tune import tune

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def before_any() -> None:
    """Keep numpy's BLAS, which no policy tool asks for anything, from starting a thread a core: 0.06 s of a check."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


app.command()(bench)
app.command()(check)
app.command()(diff)
app.command()(explain)
app.command()(fmt)
app.command()(plan)
app.command()(simulate)
app.command("test")(run_policy_tests)
app.command()(tune)
