"""What policies cost: their compilation, each record that they place, each stored record that a sweep asks about.

    python -m benchmarks.policy --batch 1,128,10K --json policy.json

compile    ms, the grammar loaded; the reference is parsing alone
first      ms of the first compilation in a process, imports apart; the reference is loading the grammar alone
place      ns a record in `Placement.chain_codes`; the reference is one numpy take from a table of 256 bytes
moves      ns a record for the conditions of all moves; the same reference
check      s of `flash-nest policy check` as a process; the reference is `python -c pass`

Records are drawn at and beside the policy's constants. The policies: a shipped one, and texts that tell records apart
by more and more facts, up to 100 namespaces with sizes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import Fact, Result, interleaved_ns, show, write_json
from benchmarks.table import count_of
from flashnest.cli.policy.files import tiering_path
from flashnest.policy import Policy, compile_policy, load_tiering_file
from flashnest.policy.parse import parse
from flashnest.policy.random_facts import random_facts
from flashnest.policy.syntax import Source
from flashnest.record import FactArrays

TAKE = "a take of bytes"
_NS_A_ROUND = 2_000_000
"""Short batches are repeated to about this long, so that the clock's own 50 ns do not count."""

_FIRST = """\
import sys, time
from pathlib import Path
import flashnest.policy.compile, flashnest.policy.parse, flashnest.policy.tiering_file
file = flashnest.policy.tiering_file.load_tiering_file(Path(sys.argv[1]))
started = time.perf_counter_ns()
if sys.argv[2] == "grammar":
    flashnest.policy.parse.lex("")
else:
    file.compile()
print(time.perf_counter_ns() - started)
"""


def texts() -> Mapping[str, str]:
    """Return the policies by name."""
    tenants = [
        f'place namespace = "tenant{i}" and tokens >= {i % 60 + 2} and bytes < {100 + i} in dram' for i in range(100)
    ]
    return {
        "hotcold": load_tiering_file(tiering_path("hotcold")).rules,
        "kind": "place kind = chunk in dram\nplace tokens >= 16 in dram else nvme\nplace otherwise in nvme",
        "namespaces": 'place namespace = "acme" in nvme\nplace namespace = "globex" and tokens > 8 in dram\n'
        "place otherwise in dram else nvme",
        "sizes": "place bytes <= 1KiB in dram\nplace bytes <= 1MiB in dram else nvme\nplace otherwise in nvme",
        "all facts": 'place namespace = "acme" and bytes > 1KiB in nvme\n'
        'place namespace = "globex" and tokens > 8 and kind = ngram in vram\nplace otherwise in dram else nvme',
        "10 tenants": "\n".join((*tenants[:10], "place otherwise in nvme")),
        "100 tenants": "\n".join((*tenants, "place otherwise in nvme")),
    }


def compiling(name: str, text: str, rounds: int) -> Result:
    """Measure the compilation of one policy."""
    policy = compile_policy(text)
    runs = {"compile": partial(_compile, text), "parse": partial(_parse, text)}
    ns = interleaved_ns(runs, rounds=rounds)
    facts: dict[str, Fact] = {"policy": name, "rules": len(policy.rules), "moves": len(policy.moves.rules)}
    return Result("compile", facts, ns["compile"] / 1e6, "ms", "parsing alone", ns["parse"] / 1e6)


def placing(name: str, policy: Policy, batch: int, rounds: int) -> list[Result]:
    """Measure what one policy costs a record, placing it and asking its moves."""
    facts = random_facts(policy, batch, np.random.default_rng(batch))
    table = np.arange(256, dtype=np.uint8)
    repeats = max(1, _NS_A_ROUND // (10_000 + 20 * batch))
    runs = {
        "place": partial(_place, policy, facts, repeats),
        "moves": partial(_match, policy, facts, repeats),
        TAKE: partial(_take, table, facts, repeats),
    }
    per_record = {case: ns / repeats / batch for case, ns in interleaved_ns(runs, rounds=rounds).items()}
    cases = ("place", "moves") if policy.moves.rules else ("place",)
    return [
        Result(case, {"policy": name, "batch": batch}, per_record[case], "ns", TAKE, per_record[TAKE]) for case in cases
    ]


def starting(rounds: int) -> list[Result]:
    """Measure what a process pays: its first compilation, and the whole of `policy check`."""
    path = str(tiering_path("hotcold"))
    first, grammar, check, nothing = [], [], [], []
    for _ in range(rounds):
        first.append(int(_output(["-c", _FIRST, path, "all"])) / 1e6)
        grammar.append(int(_output(["-c", _FIRST, path, "grammar"])) / 1e6)
        check.append(_seconds(["-m", "flashnest.cli", "policy", "check", path]))
        nothing.append(_seconds(["-c", "pass"]))
    return [
        Result("first", {"policy": "hotcold"}, _middle(first), "ms", "the grammar alone", _middle(grammar)),
        Result("check", {"policy": "hotcold"}, _middle(check), "s", "python -c pass", _middle(nothing)),
    ]


def _compile(text: str) -> None:
    compile_policy(text)


def _parse(text: str) -> None:
    parse(Source(text))


def _place(policy: Policy, facts: FactArrays, repeats: int) -> None:
    for _ in range(repeats):
        policy.placement.chain_codes(facts.tokens, facts.kind, facts.namespace, facts.nbytes)


def _match(policy: Policy, facts: FactArrays, repeats: int) -> None:
    for _ in range(repeats):
        for rule in policy.moves.rules:
            rule.matches(facts)


def _take(table: np.ndarray[tuple[int], np.dtype[np.uint8]], facts: FactArrays, repeats: int) -> None:
    for _ in range(repeats):
        table.take(facts.tokens)


def _output(arguments: Sequence[str]) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


def _seconds(arguments: Sequence[str]) -> float:
    started = time.perf_counter()
    _output(arguments)
    return time.perf_counter() - started


_middle = statistics.median


def main() -> None:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="1,128,10K", help="records in one call; K and M are understood")
    parser.add_argument("--rounds", type=int, default=31, help="rounds whose median is reported")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    batches = [count_of(word) for word in options.batch.split(",")]
    few = max(3, options.rounds // 6)
    results: list[Result] = []
    for name, text in texts().items():
        policy = compile_policy(text)
        results.append(compiling(name, text, few))
        for batch in batches:
            results += placing(name, policy, batch, options.rounds)
    results += starting(few)
    show("policies", results)
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
