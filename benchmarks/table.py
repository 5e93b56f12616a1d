"""The DRAM table beside the machine: lookups against a raw random gather over as many bytes, in the same run.

    python -m benchmarks.table --records 1M,16M,100M --batch 128 --json table.json

lookup_hit, lookup_miss  ns a key; a hit is found, its row unpacked, its hits and last access updated
lookup_one               ns of a call with one key that hits, from Python; median, less what the timer takes
lookup_multi             us of a call: 128 sequences hashed and looked up in 4 lengths, all missing but the shortest
insert                   ns a record, new rows into a touched empty table, beside writing as many bytes in order
insert_stream            million records a second from a token stream: hashed, rows built, inserted
bytes_per_record         growth of resident memory, and the table's own figure, over the records held
threads                  million peeks a second of 1 and 2 threads in batches of 128 while the owner inserts and removes

The reference of the lookups is `out[i] = memory[index[i]]`, 8 bytes a key, over as many bytes as the table has, called
with the same batches. At 100 M records table and gather take 11 GB; the keys are made anew, not held.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.harness import Result, interleaved_ns, show, write_json
from benchmarks.table_fill import (
    LENGTHS,
    SALT,
    VOCABULARY,
    WORDS,
    fill,
    keys_from,
    rows_for,
    some_keys,
    stream,
    table_for,
)
from flashnest.hashing import hash_tails
from flashnest.jit import kernel
from flashnest.record import I64Array, U64Array
from flashnest.storage.store import Found, State
from flashnest.storage.table import MAX_LOAD, DramTable

GATHER = "raw 8-byte gather"
_KEYS_A_ROUND = 128 * 128
_SEQUENCES = 128


@kernel
def gather(memory: U64Array, index: I64Array, out: U64Array) -> None:
    """Read `memory[index[i]]` into `out[i]`."""
    for i in range(index.shape[0]):
        out[i] = memory[index[i]]


def resident_bytes() -> int:
    """Return this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def write_in_order_ns(memory: U64Array, records: int) -> float:
    """Return ns a record of filling as many bytes from first to last, pages touched before."""
    memory[:] = 2
    began = time.perf_counter_ns()
    memory[:] = 1
    return (time.perf_counter_ns() - began) / records


class Bench:
    """One table of one size, and the memory beside it."""

    def __init__(self, records: int, load: float, rounds: int) -> None:
        self.records, self.load, self.rounds = records, load, rounds
        self.results: list[Result] = []
        warm = DramTable(1 << 16, words=WORDS, clock_s=lambda: 1)
        one, found = keys_from(0, 1), Found.allocate(1, WORDS)
        warm.insert_many(one, rows_for(one))
        warm.peek_many(one, found)
        warm.remove_many(one)
        before = resident_bytes()
        self.table = table_for(records, load)
        insert_ns = fill(self.table, records)
        grown = resident_bytes() - before
        self.parameters = {"records": records, "load": round(len(self.table) * MAX_LOAD / self.table.max_records, 3)}
        self.memory = np.ones(self.table.bytes_used // 8, np.uint64)
        in_order = write_in_order_ns(self.memory, records)
        self._add("insert", insert_ns, "ns/record", "writing as many bytes in order", in_order, batch=8192)
        used = self.table.bytes_used / records
        self._add("bytes_per_record", grown / records, "B/record", "budget, all allocated", used)
        self.found = Found.allocate(4096, WORDS)

    def _add(self, case: str, value: float, unit: str, reference: str, reference_value: float, **more: int) -> None:
        self.results.append(Result(case, {**self.parameters, **more}, value, unit, reference, reference_value))

    def _gather_round(self, rng: np.random.Generator, count: int, batch: int) -> Callable[[], None]:
        sets, out = (
            [rng.integers(0, len(self.memory), count) for _ in range(self.rounds + 1)],
            np.zeros(batch, np.uint64),
        )
        gather(self.memory, sets[0][:batch], out)

        def run() -> None:
            index = sets.pop()
            for start in range(0, count, batch):
                gather(self.memory, index[start : start + batch], out)

        return run

    def _lookup_round(self, sets: list[U64Array], batch: int, state: State) -> Callable[[], None]:
        def run() -> None:
            keys = sets.pop()
            for start in range(0, len(keys), batch):
                self.table.lookup_many(keys[start : start + batch], self.found)
            if not (self.found.state[:batch] == state).all():
                raise RuntimeError(f"a key was not answered with {state.name}")

        return run

    def lookups(self, batch: int) -> None:
        """Measure hits and misses in batches of `batch` beside the gather."""
        rng = np.random.default_rng(batch)
        count = max(batch, _KEYS_A_ROUND if batch > 1 else 8192)
        hits = [some_keys(self.records, count, rng) for _ in range(self.rounds + 1)]
        misses = [keys_from(self.records + (1 << 40) + i * count, count) for i in range(self.rounds + 1)]
        runs = {
            "gather": self._gather_round(rng, count, batch),
            "hit": self._lookup_round(hits, batch, State.HIT),
            "miss": self._lookup_round(misses, batch, State.MISS),
        }
        each = {name: ns / count for name, ns in interleaved_ns(runs, rounds=self.rounds).items()}
        self._add("lookup_hit", each["hit"], "ns/key", GATHER, each["gather"], batch=batch)
        self._add("lookup_miss", each["miss"], "ns/key", GATHER, each["gather"], batch=batch)

    def one(self) -> None:
        """Measure calls with one key."""
        rng = np.random.default_rng(1)
        keys, index = some_keys(self.records, 20_000, rng), rng.integers(0, len(self.memory), 20_000)
        out, calls, raw, clock = np.zeros(1, np.uint64), [], [], []
        for i in range(len(keys)):
            key, place = keys[i : i + 1], index[i : i + 1]
            began = time.perf_counter_ns()
            self.table.lookup_many(key, self.found)
            middle = time.perf_counter_ns()
            gather(self.memory, place, out)
            ended = time.perf_counter_ns()
            clock.append(time.perf_counter_ns() - ended)
            raw.append(ended - middle)
            calls.append(middle - began)
        call, gathered = (statistics.median(ns) - statistics.median(clock) for ns in (calls, raw))
        self._add("lookup_one", call, "ns/call", f"{GATHER}, one a call", gathered)

    def multi(self) -> None:
        """Measure one call that hashes 128 tails and finds the longest of four lengths; the shortest is stored."""
        rng, calls = np.random.default_rng(2), 200
        ends, salts = np.full(_SEQUENCES, 64, np.int32), np.full(_SEQUENCES, SALT, np.uint64)
        keys, index = np.zeros((_SEQUENCES, len(LENGTHS)), np.uint64), np.zeros(_SEQUENCES, np.int64)
        out, taken, raw = np.zeros(keys.size, np.uint64), [], []
        for _ in range(calls):
            tokens = rng.integers(0, VOCABULARY, (_SEQUENCES, 64)).astype(np.int32)
            hash_tails(tokens, ends, salts, LENGTHS, keys)
            shortest = keys[:, 0].copy()
            self.table.insert_many(shortest, rows_for(shortest))
            places = rng.integers(0, len(self.memory), keys.size)
            self.table.lookup_many(some_keys(self.records, 4096, rng), self.found)  # what was just stored cools down
            began = time.perf_counter_ns()
            self.table.longest_tails_many(tokens, ends, salts, LENGTHS, keys, self.found, index)
            middle = time.perf_counter_ns()
            gather(self.memory, places, out)
            raw.append(time.perf_counter_ns() - middle)
            taken.append(middle - began)
            if index.any() or not self.table.remove_many(shortest).all():
                raise RuntimeError("not the shortest length was found")
        value, reference = statistics.median(taken) / 1e3, statistics.median(raw) / 1e3
        self._add("lookup_multi", value, "us/call", f"{GATHER} of as many keys", reference, sequences=128, lengths=4)

    def threads(self, readers: int) -> None:
        """Measure how many keys `readers` threads peek at a second while this thread inserts and removes."""
        done, peeked = threading.Event(), [0] * readers

        def read(reader: int) -> None:
            rng, found = np.random.default_rng(reader), Found.allocate(128, WORDS)
            keys = some_keys(self.records, _KEYS_A_ROUND, rng).reshape(-1, 128)
            while not done.is_set():
                for batch in keys:
                    self.table.peek_many(batch, found)
                peeked[reader] += keys.size

        running = [threading.Thread(target=read, args=(reader,)) for reader in range(readers)]
        fresh = keys_from(1 << 42, 4096)
        rows = rows_for(fresh)
        for one in running:
            one.start()
        began, written = time.perf_counter(), 0
        while time.perf_counter() - began < 2:
            self.table.insert_many(fresh, rows)
            self.table.remove_many(fresh)
            written += 2 * len(fresh)
        spent = time.perf_counter() - began
        done.set()
        for one in running:
            one.join()
        reference = "the writer's inserts and removals"
        self._add("threads", sum(peeked) / spent / 1e6, "M/s", reference, written / spent / 1e6, readers=readers)


def count_of(text: str) -> int:
    """Return 16000000 for "16M", 1000 for "1K", 7 for "7"."""
    scale = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}
    return int(float(text[:-1]) * scale[text[-1].upper()]) if text[-1].upper() in scale else int(text)


def measure(records: int, batches: list[int], load: float, rounds: int) -> list[Result]:
    """Run every case at one size."""
    bench = Bench(records, load, rounds)
    for batch in batches:
        bench.lookups(batch)
    bench.one()
    bench.multi()
    for readers in (1, 2):
        bench.threads(readers)
    bench.table.close()
    results = bench.results
    del bench
    return [*results, stream(records, load)]


def main() -> None:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", default="1M,16M", help="table sizes, comma-separated; K, M and G are understood")
    parser.add_argument("--batch", default="1,128", help="keys a call")
    parser.add_argument("--load", type=float, default=0.7, help="share of slots taken, at most 0.8")
    parser.add_argument("--rounds", type=int, default=301, help="rounds whose median is reported")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batch.split(",")]
    results: list[Result] = []
    for records in map(count_of, options.records.split(",")):
        results += measure(records, batches, options.load, options.rounds)
    show("DRAM table", results)
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
