"""The VRAM table: lookups and insertions of tensors, beside a raw gather of as many rows, in the same run.

    python -m benchmarks.vram --device cuda --budget 1GiB --batch 128,512 --json vram.json

lookup_tensors   ns a key that hits, keys and answers on the device: what a drafter on the device pays
lookup_arrays    ns a key that hits, numpy arrays in and out: with the transfers and the wait, as the router asks
longest_arrays   ns a key, batch / 4 sequences x 4 lengths in one call
insert_arrays    ns a record, new keys while the table fills up
lookup_graph     CUDA only: lookup_tensors replayed from a CUDA graph

The reference is `rows[slot]`, one gather of whole rows on the same device. On CUDA each timed call ends with a wait.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import Result, interleaved_ns, show, write_json
from flashnest.hashing import mix64_many
from flashnest.record import CHAIN, META, REFS, Kind, U32Array, U64Array, pack_meta, row_words
from flashnest.storage import vram_ops
from flashnest.storage.store import Found
from flashnest.storage.vram import VramTable
from flashnest.units import parse_bytes

WORDS = row_words()
GATHER = "raw gather of rows"
_INSERTED_AT_ONCE = 4096


def make_rows(keys: U64Array) -> U32Array:
    """Return one n-gram row a key."""
    rows = np.zeros((len(keys), WORDS), np.uint32)
    rows[:, META], rows[:, REFS] = pack_meta(Kind.NGRAM, 32, WORDS - CHAIN), 1
    rows[:, CHAIN:] = (keys & np.uint64(0xFFFF)).astype(np.uint32)[:, None]
    return rows


def fill(table: VramTable) -> U64Array:
    """Fill the table; returns its keys."""
    keys = mix64_many(np.arange(1, table.max_records + 1, dtype=np.uint64))
    for at in range(0, len(keys), _INSERTED_AT_ONCE):
        part = keys[at : at + _INSERTED_AT_ONCE]
        table.insert_fitting(part, make_rows(part))
    return keys


def waiting(device: torch.device, call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls and waits for the device."""

    def run() -> None:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def graphed(table: VramTable, keys: torch.Tensor) -> Callable[[], None]:
    """Capture a lookup in a CUDA graph; returns its replay."""
    planes = table.planes
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        vram_ops.lookup(planes, keys)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        vram_ops.lookup(planes, keys)
    replay: Callable[[], None] = graph.replay
    return replay


def measure(table: VramTable, stored: U64Array, batch: int, rounds: int) -> dict[str, float]:
    """Return the median nanoseconds of each call."""
    device = table.planes.keys.device
    keys = np.random.default_rng(batch).choice(stored, batch)
    on_device = torch.from_numpy(keys.view(np.int64)).to(device)
    slot, rows = table.lookup(on_device)[1], table.planes.rows
    found, index, sequences = Found.allocate(batch, WORDS), np.zeros(batch, np.int64), keys.reshape(-1, 4)
    runs: dict[str, Callable[[], object]] = {
        GATHER: lambda: rows[slot],
        "lookup_tensors": lambda: table.lookup(on_device),
        "lookup_arrays": lambda: table.lookup_many(keys, found),
        "longest_arrays": lambda: table.longest_many(sequences, found, index),
    }
    if device.type == "cuda":
        runs["lookup_graph"] = graphed(table, on_device)
    return interleaved_ns({name: waiting(device, run) for name, run in runs.items()}, rounds=rounds)


def insert_ns(budget_bytes: int, device: str) -> tuple[float, int]:
    """Return the median nanoseconds of inserting a batch, and its records, while a table fills up."""
    table = VramTable(budget_bytes, words=WORDS, clock_s=lambda: 1, device=device)
    size = min(_INSERTED_AT_ONCE, table.max_records // 16)
    batches = iter(mix64_many(np.arange(1, 13 * size + 1, dtype=np.uint64)).reshape(13, size))
    rows = make_rows(np.arange(size, dtype=np.uint64))

    def insert() -> None:
        table.insert_fitting(next(batches), rows)

    taken = interleaved_ns({"insert": insert}, rounds=12)["insert"]
    table.close()
    return taken, size


def main() -> None:
    """Measure, print, and write the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--budget", default="64MiB", help="bytes of the table")
    parser.add_argument("--batch", default="128,512", help="keys a call, multiples of 4")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1, help="torch's CPU threads")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    budget = parse_bytes(args.budget)
    taken, size = insert_ns(budget, args.device)
    facts = {"device": args.device, "budget": args.budget}
    results = [Result("insert_arrays", {**facts, "batch": size}, taken / size, "ns/record")]
    table = VramTable(budget, words=WORDS, clock_s=lambda: 1, device=args.device)
    stored = fill(table)
    for batch in map(int, args.batch.split(",")):
        times = measure(table, stored, batch, args.rounds)
        gather = times.pop(GATHER) / batch
        results += [
            Result(case, {**facts, "batch": batch, "records": len(table)}, ns / batch, "ns/key", GATHER, gather)
            for case, ns in times.items()
        ]
    bytes_each = table.bytes_used / len(table)
    results.append(Result("bytes_per_record", {**facts, "records": len(table)}, bytes_each, "bytes"))
    table.close()
    show("VRAM table", results)
    if args.json is not None:
        write_json(args.json, results)


if __name__ == "__main__":
    main()
