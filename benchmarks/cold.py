"""The NVMe engines beside the drive: cold batches against raw reads of the same file, and bytes written.

    python -m benchmarks.cold --records 1M,16M --json cold.json

cold_batch          us of one batch of keys that are stored and in no cache; `pages_read`: 4 KiB pages that the kernel
                    fetched for it (/proc/self/io), so that "cold" is checked. Slots and the raw reads use O_DIRECT;
                    LMDB's file is dropped from the page cache before each batch, its inner pages too unless the engine
                    says `branches cached`
bytes_written       bytes that reached storage a changed record (/proc/self/io), records of 72 bytes at random places;
                    slots: to segments at once, and by the merge of all that gathered in the log
hits_write_nothing  bytes written by as many hits; the files are compared before and after

Engines take turns within every round; values are medians. Files lie in `--folder`, 95 bytes a record for slots and
about 110 for LMDB.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cold_reads import ColdBatches
from benchmarks.cold_stores import load_lmdb, load_slots
from benchmarks.cold_writes import hits_write_nothing, lmdb_bytes, slots_bytes
from benchmarks.harness import Result, show, write_json
from benchmarks.table import count_of

_BATCHES = 8


def run(folder: Path, records: int, options: argparse.Namespace) -> list[Result]:
    """Fill both stores with `records` records and run all cases."""
    batches = [count_of(text) for text in options.batch.split(",")]
    results: list[Result] = []
    with ExitStack() as stack:
        slots = load_slots(folder / "slots", records, log_records=max(batches) * _BATCHES, depth=options.depth)
        stack.callback(slots.close)
        lmdb = None
        if records <= count_of(options.lmdb_most):
            lmdb = load_lmdb(folder / "lmdb", records)
            stack.callback(lmdb.close)
        reads = ColdBatches(slots, lmdb, records, options.depth)
        for keys in map(int, options.keys.split(",")):
            results += reads.batch(keys, options.rounds)
        reads.close()
        hits = count_of(options.hits)
        results += hits_write_nothing(slots, "slots", slots._directory.data, records, hits)
        if lmdb is not None:
            results += hits_write_nothing(lmdb, "lmdb", lmdb._directory.data, records, hits)
        for batch in batches:
            results += slots_bytes(slots, records, batch, _BATCHES)
            if lmdb is not None:
                results += lmdb_bytes(lmdb, records, batch, _BATCHES)
    return results


def main() -> None:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", default="1M", help="store sizes, comma-separated; K, M and G are understood")
    parser.add_argument("--keys", default="1,4,18,64", help="keys a cold batch")
    parser.add_argument("--batch", default="4096,16384", help="changed records a write")
    parser.add_argument("--hits", default="1M", help="hits that must write nothing")
    parser.add_argument("--depth", type=int, default=64, help="most reads in flight")
    parser.add_argument("--rounds", type=int, default=61, help="rounds whose median is reported")
    parser.add_argument("--lmdb-most", default="16M", help="leave LMDB out above this many records")
    parser.add_argument("--folder", type=Path, help="where the stores are made; default: the system's folder for such")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    results: list[Result] = []
    for records in map(count_of, options.records.split(",")):
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="flashnest-cold-") as folder:
            results += run(Path(folder), records, options)
    show("cold tier", results)
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
