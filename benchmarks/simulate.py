"""How fast a trace goes through a policy, and what eviction does on real traces: `python -m benchmarks.simulate`.

speed       accesses a second: hotcold, DRAM alone and 20 different rules, on a generated text trace and, where its
            file is there, the Mooncake conversation trace. Reference: the goal of 1 M a second. `speed` is the play
            alone by the clock, `speed_cpu` a whole call by its CPU time: what a machine that others use would do alone.
miss_ratio  of S3-FIFO, SIEVE and LRU on the Mooncake traces with room for 3 and 10 % of the blocks. Reference: Belady's
            optimum, and the ratios that another simulator found (research/tiering.md 2) as a parameter.
optimum     how fast Belady's bound is found.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.harness import Fact, Result, show, write_json
from flashnest.policy import Policy, compile_policy, load_tiering_file
from flashnest.record import Tier
from flashnest.simulate import Simulation, TierOptions, Trace, generated_trace, load_trace, simulate
from flashnest.simulate.belady import most_answered
from flashnest.storage.table import records_within

GOAL: Final = 1e6
DATA: Final = Path("../shared/data")
ELSEWHERE: Final = {
    ("conversation", 0.03): {"s3fifo": 0.855, "sieve": 0.906, "lru": 0.875},
    ("conversation", 0.1): {"s3fifo": 0.754, "sieve": 0.805, "lru": 0.722},
    ("synthetic", 0.03): {"s3fifo": 0.891, "sieve": 0.942, "lru": 0.899},
    ("synthetic", 0.1): {"s3fifo": 0.739, "sieve": 0.824, "lru": 0.740},
}
"""Miss ratios by trace and by room as a share of the unique blocks, of exact textbook algorithms."""
WORDS: Final = 16


def hotcold() -> Policy:
    """Return the shipped hot/cold split."""
    return load_tiering_file(Path(str(files("flashnest") / "conf/tiering/hotcold.yaml"))).compile()


def many_rules() -> Policy:
    """Return a policy of 10 places and 10 moves whose conditions look at everything."""
    places = [f'place tokens = {4 * i} and not namespace = "t{i}" in dram else nvme' for i in range(1, 9)]
    moves = [
        f"promote tokens >= {4 * i} and (hits in {30 * i}s >= {i + 1} or refs >= {100 * i}) from nvme to dram "
        f"at most {100 * i} rec/s cooldown 30s"
        for i in range(1, 6)
    ]
    moves += [
        f"demote tokens <= {8 * i} and idle > {60 - 10 * i}s and hits <= {i} from dram to nvme "
        "when fill > 80% until fill < 70% by idle desc cooldown 30s"
        for i in range(1, 6)
    ]
    rest = ["place kind = chunk in dram else nvme", "place otherwise in nvme else dram"]
    return compile_policy("\n".join([*places, *rest, *moves]), source="20 rules")


def capacity_for(records: int, eviction: str) -> int:
    """Return the bytes of a DRAM table for about so many records."""
    capacity = 64 * records
    for _ in range(30):
        found = records_within(capacity, words=WORDS, eviction=eviction)[0]
        capacity += int((records - found) * 50)
    return capacity


def speed(traces: dict[str, Trace], rounds: int) -> Iterator[Result]:
    """Yield accesses a second for each trace and policy: the median of `rounds`, interleaved."""
    policies = {"dram_only": compile_policy("place otherwise in dram"), "hotcold": hotcold(), "20 rules": many_rules()}
    for name, trace in traces.items():
        capacities = {Tier.DRAM: capacity_for(trace.records // 5, "s3fifo"), Tier.NVME: 1 << 30}
        found: dict[str, list[float]] = {policy: [] for policy in policies}
        whole: dict[str, list[float]] = {policy: [] for policy in policies}
        for _ in range(rounds + 1):
            for policy, compiled in policies.items():
                started = time.process_time()
                result = simulate(compiled, trace, capacities=capacities, belady=False)
                whole[policy].append(len(trace) / (time.process_time() - started))
                found[policy].append(result.accesses_per_s)
        for policy in policies:
            facts: dict[str, Fact] = {
                "trace": name,
                "accesses": len(trace),
                "records": trace.records,
                "steps": trace.steps,
            }
            steps: dict[str, Fact] = {"policy": policy, **facts}
            yield Result("speed", steps, statistics.median(found[policy][1:]), "accesses/s", "goal", GOAL)
            yield Result("speed_cpu", steps, statistics.median(whole[policy][1:]), "accesses/s", "goal", GOAL)


def optimum(traces: dict[str, Trace]) -> Iterator[Result]:
    """Yield how fast Belady's bound is found."""
    for name, trace in traces.items():
        most_answered(trace, 1)
        started = time.perf_counter()
        most_answered(trace, trace.records // 10)
        value = len(trace) / (time.perf_counter() - started)
        yield Result("optimum", {"trace": name, "accesses": len(trace)}, value, "accesses/s", "goal", GOAL)


def miss_ratios(traces: dict[str, Trace]) -> Iterator[Result]:
    """Yield miss ratios of the evictions on the Mooncake traces."""
    policy = compile_policy("place otherwise in dram")
    for name, trace in traces.items():
        for share in (0.03, 0.1):
            for eviction, elsewhere in ELSEWHERE[name, share].items():
                found = _evicting(policy, trace, int(share * trace.records), eviction)
                facts: dict[str, Fact] = {"trace": name, "room": share, "eviction": eviction, "elsewhere": elsewhere}
                best = 1.0 - (found.belady_hit_share or 0.0)
                yield Result("miss_ratio", facts, found.misses / found.questions, "share", "Belady", best)


def _evicting(policy: Policy, trace: Trace, records: int, eviction: str) -> Simulation:
    capacity = capacity_for(records, eviction)
    return simulate(policy, trace, capacities={Tier.DRAM: capacity}, options=TierOptions(eviction=eviction))


def mooncake(folder: Path, console: Console) -> dict[str, Trace]:
    """Read the Mooncake traces that are there; says which are not."""
    traces = {}
    for name in ("conversation", "synthetic"):
        path = folder / f"mooncake_{name}_trace.jsonl"
        if path.exists():
            traces[name] = load_trace(path)
        else:
            console.print(f"skipped: {path} is not there (Mooncake FAST'25, Apache-2.0)")
    return traces


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256, help="requests of the generated trace")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA, help="where the Mooncake traces lie")
    parser.add_argument("--json", type=Path, help="write the rows there")
    arguments = parser.parse_args()
    console = Console()
    real = mooncake(arguments.data, console)
    traces = {"text, repeat_50": generated_trace(0.5, requests=arguments.requests)}
    if "conversation" in real:
        traces["conversation"] = real["conversation"]
    results = [*speed(traces, arguments.rounds), *optimum(traces), *miss_ratios(real)]
    show("policy simulate", results)
    if arguments.json is not None:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
