"""The DRAM table beside the machine: lookups against a raw random gather over as many bytes, in the same run.

    python -m benchmarks.table --records 1M,16M --batch 1,128 --json table.json

lookup_hit, lookup_miss  ns a key; a hit is found, its row copied out, its hits and last access updated
lookup_one               ns of a call with one key that hits, from Python
lookup_multi             ns a key, 128 sequences x 4 lengths in one call, all missing but the shortest
insert                   ns a record, new keys into an empty table, beside writing as many bytes in order
bytes_per_record         growth of resident memory and the table's own figure, over the records held

The reference of the lookups is `out[i] = memory[index[i]]`, 8 bytes a key, over the bytes of buckets and rows together,
called with the same batches.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import Result, interleaved_ns, show, write_json
from flashnest.hashing import mix64
from flashnest.jit import kernel
from flashnest.record import CHAIN, META, REFS, I64Array, Kind, U32Array, U64Array, pack_meta, row_words
from flashnest.storage.store import Found, State
from flashnest.storage.table import MAX_LOAD, DramTable

WORDS = row_words()
GATHER = "raw 8-byte gather"
_KEYS_A_ROUND = 128 * 128


@kernel
def gather(memory: U64Array, index: I64Array, out: U64Array) -> None:
    """Read `memory[index[i]]` into `out[i]`."""
    for i in range(index.shape[0]):
        out[i] = memory[index[i]]


@kernel
def make_keys(start: int, out: U64Array) -> None:
    """Fill `out` with distinct keys, the same for the same start."""
    for i in range(out.shape[0]):
        out[i] = mix64(np.uint64(start + i + 1))


def keys_from(start: int, count: int) -> U64Array:
    """Return `count` distinct keys, from the `start`-th on."""
    keys = np.empty(count, np.uint64)
    make_keys(start, keys)
    return keys


def budget_for(records: int, load: float) -> int:
    """Return the byte budget of a table that `records` fill to `load`."""
    buckets = math.ceil(records / (7 * load))
    return buckets * (64 + 7 * 4 * WORDS) + 64


def rows_for(keys: U64Array) -> U32Array:
    """Return a record a key: a matched 32-gram and eight tokens."""
    rows = np.zeros((len(keys), WORDS), np.uint32)
    rows[:, META] = pack_meta(Kind.NGRAM, 32, WORDS - CHAIN)
    rows[:, REFS] = 1
    rows[:, CHAIN:] = (keys & np.uint64(0x7FFF)).astype(np.uint32)[:, None]
    return rows


def resident_bytes() -> int:
    """Return this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def fill(table: DramTable, records: int) -> float:
    """Insert `records` new records in batches of 8192; returns ns a record, building rows not counted."""
    spent = 0
    for start in range(0, records, 8192):
        keys = keys_from(start, min(8192, records - start))
        rows = rows_for(keys)
        began = time.perf_counter_ns()
        stored = table.insert_many(keys, rows)
        spent += time.perf_counter_ns() - began
        if not stored.all():
            raise RuntimeError(f"the table took only {len(table)} records")
    return spent / records


def write_in_order_ns(nbytes: int, records: int) -> float:
    """Return ns a record of filling as many fresh bytes from first to last."""
    memory = np.zeros(nbytes // 8, np.uint64)
    began = time.perf_counter_ns()
    memory[:] = 1
    return (time.perf_counter_ns() - began) / records


class Bench:
    """One table of one size, and the memory beside it."""

    def __init__(self, records: int, load: float, rounds: int) -> None:
        self.records, self.rounds = records, rounds
        self.results: list[Result] = []
        before = resident_bytes()
        warm = DramTable(1 << 16, words=WORDS, clock_s=lambda: 1)
        warm.insert_many(keys_from(0, 1), rows_for(keys_from(0, 1)))
        self.table = DramTable(budget_for(records, load), words=WORDS, clock_s=lambda: 1, evict=False)
        insert_ns = fill(self.table, records)
        grown = resident_bytes() - before
        self.parameters = {"records": records, "load": round(len(self.table) * MAX_LOAD / self.table.max_records, 3)}
        in_order = write_in_order_ns(self.table.bytes_used, records)
        self._add("insert", insert_ns, "ns/record", "writing as many bytes in order", in_order, batch=8192)
        used = self.table.bytes_used / records
        self._add("bytes_per_record", grown / records, "B/record", "budget, all allocated", used)
        self.memory = np.ones(self.table.bytes_used // 8, np.uint64)
        self.found = Found.allocate(4096, WORDS)

    def _add(self, case: str, value: float, unit: str, reference: str, reference_value: float, **more: int) -> None:
        self.results.append(Result(case, {**self.parameters, **more}, value, unit, reference, reference_value))

    def lookups(self, batch: int) -> None:
        """Measure hits and misses in batches of `batch` beside the gather."""
        rng = np.random.default_rng(batch)
        count = max(batch, _KEYS_A_ROUND if batch > 1 else 8192)
        rounds = self.rounds
        all_keys = keys_from(0, self.records)
        hit_sets = [all_keys[rng.integers(0, self.records, count)] for _ in range(rounds + 1)]
        del all_keys
        miss_sets = [keys_from(self.records + (1 << 40) + i * count, count) for i in range(rounds + 1)]
        index_sets = [rng.integers(0, len(self.memory), count) for _ in range(rounds + 1)]
        out = np.zeros(batch, np.uint64)

        def gather_round() -> None:
            index = index_sets.pop()
            for start in range(0, count, batch):
                gather(self.memory, index[start : start + batch], out)

        def hit_round() -> None:
            keys = hit_sets.pop()
            for start in range(0, count, batch):
                self.table.lookup_many(keys[start : start + batch], self.found)
            if not (self.found.state[:batch] == State.HIT).all():
                raise RuntimeError("a stored key was not found")

        def miss_round() -> None:
            keys = miss_sets.pop()
            for start in range(0, count, batch):
                self.table.lookup_many(keys[start : start + batch], self.found)

        gather(self.memory, index_sets[0][:batch], out)
        taken = interleaved_ns({"gather": gather_round, "hit": hit_round, "miss": miss_round}, rounds=rounds)
        each = {name: ns / count for name, ns in taken.items()}
        self._add("lookup_hit", each["hit"], "ns/key", GATHER, each["gather"], batch=batch)
        self._add("lookup_miss", each["miss"], "ns/key", GATHER, each["gather"], batch=batch)

    def one(self) -> None:
        """Measure calls with one key."""
        rng = np.random.default_rng(1)
        keys = keys_from(0, self.records)[rng.integers(0, self.records, 20_000)]
        index = rng.integers(0, len(self.memory), 20_000)
        out = np.zeros(1, np.uint64)
        calls, raw = [], []
        for i in range(len(keys)):
            key, place = keys[i : i + 1], index[i : i + 1]
            began = time.perf_counter_ns()
            self.table.lookup_many(key, self.found)
            middle = time.perf_counter_ns()
            gather(self.memory, place, out)
            raw.append(time.perf_counter_ns() - middle)
            calls.append(middle - began)
        self._add("lookup_one", statistics.median(calls), "ns/call", f"{GATHER}, one a call", statistics.median(raw))

    def multi(self) -> None:
        """Measure the longest match of 128 sequences with four lengths each."""
        rng, rounds, calls = np.random.default_rng(2), self.rounds, 32
        index = np.zeros(128, np.int64)
        all_keys = keys_from(0, self.records)
        sets = []
        for i in range(rounds + 1):
            keys = keys_from((1 << 41) + i * calls * 512, calls * 512).reshape(calls, 128, 4)
            keys[:, :, 0] = all_keys[rng.integers(0, self.records, (calls, 128))]
            sets.append(keys)
        index_sets = [rng.integers(0, len(self.memory), calls * 512) for _ in range(rounds + 1)]
        out = np.zeros(512, np.uint64)

        def longest_round() -> None:
            for keys in sets.pop():
                self.table.longest_many(keys, self.found, index)

        def gather_round() -> None:
            places = index_sets.pop()
            for start in range(0, len(places), 512):
                gather(self.memory, places[start : start + 512], out)

        taken = interleaved_ns({"gather": gather_round, "longest": longest_round}, rounds=rounds)
        per_key = calls * 512
        self._add("lookup_multi", taken["longest"] / per_key, "ns/key", GATHER, taken["gather"] / per_key, batch=512)


def count_of(text: str) -> int:
    """Return 16000000 for "16M", 1000 for "1K", 7 for "7"."""
    scale = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}
    return int(float(text[:-1]) * scale[text[-1].upper()]) if text[-1].upper() in scale else int(text)


def main() -> None:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", default="1M,16M", help="table sizes, comma-separated; K, M and G are understood")
    parser.add_argument("--batch", default="1,128", help="keys a call")
    parser.add_argument("--load", type=float, default=0.75, help="share of slots taken, at most 0.8")
    parser.add_argument("--rounds", type=int, default=41, help="rounds whose median is reported")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    results: list[Result] = []
    for records in map(count_of, options.records.split(",")):
        bench = Bench(records, options.load, options.rounds)
        for batch in map(int, options.batch.split(",")):
            bench.lookups(batch)
        bench.one()
        bench.multi()
        results += bench.results
        del bench
    show("DRAM table", results)
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
