"""Opens the tiers that a run names and the router over them: the only place that chooses engines and devices."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from flashnest.config import NvmeTierConfig, RunConfig, VramTierConfig
from flashnest.errors import StoreFullError
from flashnest.policy import Policy
from flashnest.record import Tier, row_words
from flashnest.report.figures import bytes_text
from flashnest.runtime.forward import ModelSpec
from flashnest.runtime.traced_router import TracedRouter
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.router import Router
from flashnest.storage.router_tiers import Table
from flashnest.storage.slots import SlotsStore
from flashnest.storage.step_clock import StepClock
from flashnest.storage.store import ColdStore
from flashnest.storage.table import DramTable
from flashnest.telemetry.trace_writer import TraceWriter

EMULATED_SHARE: Final = 0.25
"""Most of this machine's free memory that an emulated platform's table may take: the records are real."""
MIN_TOKEN_BITS: Final = 16
"""Narrower tokens save nothing: a row of eight is 32 bytes at 16 as at 18 bits."""
BUFFER_TABLE_BYTES: Final = 1 << 20
"""A DRAM table always exists, so that the decode path has one shape; without a dram tier nothing is placed in it."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """The router, where its cold records lie, (engine, how it reads), and what the first lines must say."""

    router: Router
    nvme_path: Path | None
    nvme_reader: tuple[str, str]
    notices: tuple[str, ...]


def open_tiers(
    run: RunConfig, policy: Policy, output_dir: Path, spec: ModelSpec, trace: TraceWriter | None = None
) -> Tiers:
    """Open the tiers that the run names. Raises FlashnestError; what was opened before an error is closed.

    The router records to `trace` where there is one, and closes it.
    """
    opener = _Opener(run, policy, spec)
    with ExitStack() as undo:
        vram = opener.vram(run.tiering.tiers.vram)
        if vram is not None:
            undo.callback(vram.close)
        dram = opener.dram()
        opener.notice_other_eviction()
        undo.callback(dram.close)
        path, store = opener.nvme_path(output_dir), None
        nvme = run.tiering.tiers.nvme
        if nvme is not None and path is not None:
            store = opener.nvme(nvme, path)
            undo.callback(store.close)
        cold = None if store is None or nvme is None else opener.cold(nvme, store)
        router = (Router if trace is None else TracedRouter)(
            dram,
            cold,
            policy.placement,
            vram=vram,
            moves=policy.moves,
            window_keys=run.table.window_keys,
            clock_s=opener.clock_s,
        )
        if isinstance(router, TracedRouter) and trace is not None:
            router.record_to(trace)
        undo.pop_all()
    return Tiers(router, path, _reader(nvme, store), tuple(opener.notices))


def _reader(tier: NvmeTierConfig | None, store: ColdStore | None) -> tuple[str, str]:
    if tier is None or store is None:
        return "", ""
    if not isinstance(store, SlotsStore):
        return tier.engine, ""
    return tier.engine, store.io if store.io == "io_uring" else f"{store.io}: {store.io_why}"


class _Opener:
    """What every tier of a run shares: row width, packing, clock, and the notices gathered on the way."""

    def __init__(self, run: RunConfig, policy: Policy, spec: ModelSpec) -> None:
        self._run, self._policy, self._spec = run, policy, spec
        self._words = row_words(run.table.chain_tokens)
        self._token_bits = max(MIN_TOKEN_BITS, (spec.vocab_size - 1).bit_length())
        self.clock_s = wall_clock_s()
        self.notices: list[str] = []

    def dram(self) -> DramTable:
        tier = self._run.tiering.tiers.dram
        return DramTable(
            BUFFER_TABLE_BYTES if tier is None else self._budget(tier.capacity_bytes, "DRAM"),
            words=self._words,
            clock_s=self.clock_s,
            evict=False,
            eviction="lru" if tier is None else tier.eviction,
            token_bits=self._token_bits,
            namespaces=self._policy.namespaces,
            populate=tier is not None and not self._run.platform.emulated,
        )

    def notice_other_eviction(self) -> None:
        """Say where a rule names another eviction than the DRAM table has: the table's own is what runs."""
        tier = self._run.tiering.tiers.dram
        if tier is None:
            return
        for rule in self._policy.moves.acting.rules:
            if rule.source is Tier.DRAM and rule.using not in (None, tier.eviction):
                self.notices.append(
                    f"rule {rule.number} says `using {rule.using}`, the dram tier evicts by {tier.eviction} "
                    f"(tiering.tiers.dram.eviction={rule.using} makes them agree)"
                )

    def vram(self, tier: VramTierConfig | None) -> Table | None:
        if tier is None:
            return None
        import torch

        from flashnest.storage.vram import VramTable

        device = tier.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() and not self._run.platform.emulated else "cpu"
        if device == "cpu":
            self.notices.append("the VRAM table lives in this machine's DRAM: no GPU of the run's platform is here")
        budget = self._budget(tier.capacity_bytes, "VRAM") if device == "cpu" else tier.capacity_bytes
        return VramTable(budget, words=self._words, clock_s=self.clock_s, device=device, evict=False)

    def nvme(self, tier: NvmeTierConfig, path: Path) -> ColdStore:
        if tier.engine == "lmdb":
            return LmdbStore(path, tier.capacity_bytes, words=self._words, owner=self._spec.name, clock_s=self.clock_s)
        return SlotsStore(
            path,
            tier.capacity_bytes,
            words=self._words,
            owner=self._spec.name,
            clock_s=self.clock_s,
            io=tier.io,
            depth=tier.depth,
        )

    def cold(self, tier: NvmeTierConfig, store: ColdStore) -> ColdTier:
        options = ColdOptions(
            blocking=tier.cold_reads == "blocking",
            queue_keys=tier.prefetch_keys,
            batch_keys=tier.depth,
            deadline_s=tier.deadline_s,
            flush_records=tier.flush_records,
            flush_interval_s=tier.flush_interval_s,
        )
        flush = self._policy.flush
        if flush is not None:  # the policy's word goes: batches as large as the buffer, at its interval and rate
            options = replace(
                options,
                flush_records=options.buffer_bytes,
                flush_interval_s=flush.every_s,
                most_bytes_per_s=flush.most_bytes_per_s,
            )
        return ColdTier(store, words=self._words, clock_s=self.clock_s, options=options, token_bits=self._token_bits)

    def nvme_path(self, output_dir: Path) -> Path | None:
        nvme = self._run.tiering.tiers.nvme
        if nvme is None:
            return None
        if nvme.path is None:
            return output_dir / "nvme"
        # Token ids mean nothing under another tokenizer, and engines do not share files: each has a folder of its own.
        folder = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{self._spec.name}-{self._spec.back_end}")
        return Path(nvme.path).expanduser() / (folder if nvme.engine == "lmdb" else f"{folder}-{nvme.engine}")

    def _budget(self, wanted_bytes: int, tier: str) -> int:
        """Return the tier's budget: as asked; on an emulated platform no more than a share of this machine's memory."""
        free = psutil.virtual_memory().available
        if not self._run.platform.emulated:
            if wanted_bytes > free:
                raise StoreFullError(
                    f"the {tier} table asks for {bytes_text(wanted_bytes)}, {bytes_text(free)} are free",
                    why="a tier's capacity is allocated whole, so that it never grows",
                    fix=f"lower tiering.tiers.{tier.lower()}.capacity",
                )
            return wanted_bytes
        room = int(free * EMULATED_SHARE)
        if wanted_bytes <= room:
            return wanted_bytes
        self.notices.append(
            f"the {tier} table gets {bytes_text(room)} of {self._run.platform.name}'s {bytes_text(wanted_bytes)}: "
            "its records are real and live in this machine's memory"
        )
        return room


def wall_clock_s() -> StepClock:
    """Return a clock of whole seconds since 1970 that never goes back: records outlive runs, so runs must agree."""
    offset_s = time.time() - time.monotonic()
    return StepClock(lambda: int(offset_s + time.monotonic()))
