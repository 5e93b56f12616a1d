"""What a cold tier is told and what it counts. Does nothing."""

from __future__ import annotations

from dataclasses import dataclass

from flashnest.storage.cold_reads import READ_KEYS


@dataclass(frozen=True, slots=True)
class ColdOptions:
    """How a cold tier reads and writes.

    `queue_keys`: most keys under way; `batch_keys`: most that the store is asked at once; `touch_bytes`: DRAM for the
    hits of cold records, 16 bytes each. A batch is written at `flush_records` records or `flush_interval_s` after its
    first one; with `most_bytes_per_s` not before the drive has had that time for the last one. `threaded` False is for
    tests: nothing happens until `pump`.
    """

    blocking: bool = False
    queue_keys: int = 4096
    batch_keys: int = READ_KEYS
    deadline_s: float = 0.25
    buffer_bytes: int = 8 << 20
    flush_records: int = 16384
    flush_interval_s: float = 5.0
    most_bytes_per_s: float | None = None
    touch_bytes: int = 4 << 20
    threaded: bool = True


@dataclass(frozen=True, slots=True)
class ColdStats:
    """Counters of a cold tier since it was opened, in keys or records unless they say bytes.

    queued: reads accepted; answered: of these, answered by the store; late: answered as a miss at their deadline;
    errors: answered as a miss because the store failed; dropped: not accepted, too many under way; known: inserts
    skipped because the record is there; batches: written to disk; bytes_written: the records' own bytes, disk_bytes:
    what the drive was sent for them; write_errors: records and removals lost to a failing disk; filter_negative: of
    filter_queries, kept from the store; filter_false_positive: let through, and the store had nothing.
    """

    queued: int
    answered: int
    late: int
    dropped: int
    errors: int
    filter_queries: int
    filter_negative: int
    filter_false_positive: int
    filter_bytes: int
    filter_rebuilds: int
    buffered_hits: int
    buffer_bytes: int
    known: int
    bytes_written: int
    disk_bytes: int
    batches: int
    write_errors: int
    corrupt: int
