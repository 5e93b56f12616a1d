"""The simulation once more in plain Python, one access at a time: dicts and objects, the real rules, brakes and paces.

Conditions are `policy.evaluate`'s, rates, breaker, watermarks and passes those of `flashnest.storage`; only what those
keep by key (sketches, recent moves, ghosts) is exact here. Slow on purpose: nothing is shared with the kernels but the
order in which slots are given out.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from flashnest.hashing import mix64_many
from flashnest.policy import Policy
from flashnest.policy.moves import MoveRule
from flashnest.record import FactArrays, Kind, Tier
from flashnest.simulate.trace import INSERT, LOOKUP, Trace
from flashnest.storage.moves import RuleState
from flashnest.storage.sweep_pace import Pass, Watermark

GENERATIONS = 4


@dataclass(eq=False)
class Record:
    """What is known of one record."""

    number: int
    tokens: int
    kind: int
    namespace: int
    nbytes: int
    tier: Tier | None = None
    slot: int = -1
    hits: int = 0
    refs: int = 0
    last: int = 0
    inserted: int = 0
    moved: int | None = None
    way: tuple[Tier, Tier | None] | None = None
    uses: int = 0
    queued: bool = False
    ghost: int = 0
    batch: int = 0
    seen: Counter[tuple[int, int]] = field(default_factory=Counter)
    learnt: Counter[int] = field(default_factory=Counter)
    stored: bool = False
    asked: bool = False
    waiting: bool = False
    tried: set[int] = field(default_factory=set)


class Place:
    """One tier: slots with holes, the eviction's hand and queue."""

    def __init__(self, tier: Tier, room: int, records: int, eviction: str | None) -> None:
        self.tier, self.room, self.eviction = tier, room, eviction
        size = min(room, records)
        self.slots: list[Record | None] = [None] * size
        leap = max(1, int(size * 0.6180339887))
        while size and math.gcd(leap, size) != 1:
            leap += 1
        self.free = [i * leap % size for i in range(size)][::-1]
        self.ring: deque[Record] = deque()
        self.hand, self.young, self.ghosts = 0, True, 0
        self.scan = 0
        self.peak = 0
        self.passes = Pass(3600.0 if tier is Tier.NVME else 30.0, 0)

    def __len__(self) -> int:
        return len(self.slots) - len(self.free)

    @property
    def fits(self) -> bool:
        return len(self) < self.room

    def put(self, record: Record) -> None:
        record.slot = self.free.pop()
        record.tier, record.uses, record.queued = self.tier, 0, False
        self.slots[record.slot] = record
        self.peak = max(self.peak, len(self))
        remembered = self.eviction == "s3fifo" and self._lay(record)
        if self.eviction in ("s3fifo", "sieve") and not remembered:
            record.queued = True
            if len(self.ring) == len(self.slots):
                oldest = self._pop()
                if oldest is not None:
                    oldest.queued, oldest.uses = False, 0
            self.ring.append(record)

    def _lay(self, record: Record) -> bool:
        left, record.ghost = record.ghost, 0
        return left > 0 and self.ghosts - left < int(self.room * 0.9)

    def take_out(self, record: Record) -> None:
        self.slots[record.slot] = None
        self.free.append(record.slot)
        record.tier, record.uses, record.queued = None, 0, False

    def _pop(self) -> Record | None:
        record = self.ring.popleft()
        return record if record.tier is self.tier and record.queued else None

    def _next(self) -> Record | None:
        record = self.slots[self.hand]
        self.hand += 1
        if self.hand >= len(self.slots):
            self.hand, self.young = 0, True
        return record

    def victim(self) -> Record | None:
        if not len(self) or self.eviction is None:
            return None
        return self._idlest() if self.eviction == "lru" else self._first(sieve=self.eviction == "sieve")

    def _first(self, *, sieve: bool) -> Record | None:
        for step in range(1, 2 * 136 + 1):
            if not self.ring:
                self.young = False
                from_queue = False
            elif sieve:
                from_queue = self.young
            else:
                from_queue = len(self.ring) >= max(1, int(self.room * 0.1))
            if from_queue or (step > 136 and self.ring):
                record = self._pop()
                if record is None:
                    continue
                used = record.uses >= (1 if sieve else 2)
                record.uses, record.queued = 0, False
                if used:
                    continue
                if not sieve:
                    self.ghosts += 1
                    record.ghost = self.ghosts
                return record
            record = self._next()
            if record is None or record.queued:
                continue
            if record.uses:
                record.uses = 0 if sieve else record.uses - 1
                continue
            return record
        met = (self._next() for _ in range(len(self.slots)))
        return next((record for record in met if record is not None), None)

    def _idlest(self) -> Record | None:
        sample: list[Record] = []
        for _ in range(2 * len(self.slots)):
            if len(sample) == min(16, len(self)):
                break
            record = self._next()
            if record is not None and record.queued:
                record.queued = False
            elif record is not None:
                sample.append(record)
        return min(sample, key=lambda record: (record.last, record.uses), default=None)

    def spare(self, record: Record) -> None:
        if self.eviction == "lru":
            record.queued = True
        else:
            record.queued, record.uses, record.ghost = False, 3, 0

    def slice(self, most: int) -> list[Record]:
        batch: list[Record] = []
        while self.scan < len(self.slots) and len(batch) < most:
            record = self.slots[self.scan]
            self.scan += 1
            if record is not None:
                batch.append(record)
        if self.scan >= len(self.slots):
            self.scan = 0
        return batch


class Plain:
    """One run. Attributes are the results."""

    def __init__(
        self,
        policy: Policy,
        trace: Trace,
        rooms: Mapping[Tier, int],
        *,
        eviction: str,
        blocking: bool = False,
        flush_records: int = 4096,
        flush_s: float = 5.0,
    ) -> None:
        self.policy, self.trace, self.blocking = policy, trace, blocking
        self.flush_records, self.flush_ms = flush_records, int(1000 * flush_s)
        algorithms = {Tier.VRAM: "lru", Tier.DRAM: eviction, Tier.NVME: None}
        self.places = {tier: Place(tier, room, trace.records, algorithms[tier]) for tier, room in rooms.items()}
        facts = zip(trace.tokens, trace.kind, trace.namespace, trace.nbytes, strict=True)
        self.records = [Record(i, *(int(value) for value in one)) for i, one in enumerate(facts)]
        moves = [
            rule
            for rule in policy.moves.rules
            if rule.source in rooms and (rule.target is None or rule.target in rooms)
        ]
        self.keeps = [rule for rule in moves if rule.action == "keep" and rule.acts]
        nbytes = float(trace.nbytes.mean()) if trace.records else 72.0
        self.states = [RuleState(rule, nbytes) for rule in moves if rule.action != "keep"]
        self.marks = {
            id(state): Watermark(state) for state in self.states if state.rule.when_fill is not None and state.rule.acts
        }
        self.left = {id(state): 0 for state in self.states}
        acting = [state.rule for state in self.states]
        self.stays = any(Tier.NVME in (rule.source, rule.target) and rule.acts for rule in acting)
        self.promotes = any(rule.source is Tier.NVME and rule.action == "promote" for rule in acting)
        self.ruled = {rule.source for rule in acting} | {r.source for r in moves if r.action == "keep" and not r.acts}
        self.found: deque[Record] = deque()
        self.pending: list[Record] = []
        self.gathered, self.gathered_ms, self.batch = 0, -1, 1
        self.hits: Counter[Tier] = Counter(dict.fromkeys(rooms, 0))
        self.hits_by_rule: Counter[int] = Counter()
        self.would_have: Counter[int] = Counter()
        self.questions = self.misses = self.rejected = self.not_admitted = self.pushed_out = 0
        self.changes = self.false_reads = 0
        self.reads: list[int] = []
        self.now_s = self.now_ms = 0

    def run(self, check: Callable[[Plain], None] = lambda run: None) -> Plain:
        trace = self.trace
        for step in range(trace.steps):
            self.now_ms = int(trace.step_time_ms[step] - trace.step_time_ms[0])
            self.now_s = self.now_ms // 1000
            self.reads.append(0)
            self._drain()
            mine = np.flatnonzero(trace.step == step)
            questions: dict[int, list[Record]] = {}
            for i in mine[trace.op[mine] == LOOKUP]:
                questions.setdefault(int(trace.group[i]), []).append(self.records[trace.record[i]])
            for candidates in questions.values():
                self._ask(candidates)
            for i in mine[trace.op[mine] == INSERT]:
                self._learn(self.records[trace.record[i]])
            self._flush()
            self._sweep(len(mine))
            check(self)
        return self

    # lookups

    def _drain(self) -> None:
        for record in self.pending:
            if record.tier is Tier.NVME:
                self._hit(record)
                self._find(record)
        self.pending = []

    def _hit(self, record: Record) -> None:
        record.hits, record.uses = min(record.hits + 1, 4095), min(record.uses + 1, 3)
        record.last, record.asked = self.now_s, True
        for window_s in self.policy.moves.windows_s:
            record.seen[window_s, self._generation(window_s)] += 1

    def _generation(self, window_s: int) -> int:
        return GENERATIONS + self.now_s * (GENERATIONS - 1) // window_s

    def _find(self, record: Record) -> None:
        if self.promotes and not record.waiting and len(self.found) < 4096:
            record.waiting = True
            self.found.append(record)

    def _ask(self, candidates: list[Record]) -> None:
        self.questions += 1
        found: Record | None = None
        for record in candidates:
            if record.tier in (Tier.VRAM, Tier.DRAM):
                found = found or record
                break
            if found is not None and self.blocking:
                continue
            if record.tier is Tier.NVME:
                self.reads[-1] += record.batch != self.batch
                found = found or record
            elif Tier.NVME in self.places and _passes_filter(record.number):
                self.reads[-1] += 1
                self.false_reads += 1
        if found is None:
            self.misses += 1
            return
        assert found.tier is not None
        self.hits[found.tier] += 1
        self.hits_by_rule[self._rule(found)] += 1
        found.asked = True
        if found.tier is not Tier.NVME:
            self._hit(found)
        elif self.blocking or found.batch == self.batch:
            self._hit(found)
            self._find(found)
        else:
            self.pending.append(found)

    def _codes(self, record: Record) -> tuple[np.ndarray, ...]:
        dtypes = (np.uint8, np.uint8, np.uint32, np.uint32)
        values = (record.tokens, record.kind, record.namespace, record.nbytes)
        return tuple(np.array([value], dtype) for value, dtype in zip(values, dtypes, strict=True))

    def _rule(self, record: Record) -> int:
        return self.policy.rules[int(self.policy.placement.rule_codes(*self._codes(record))[0])].number

    # inserts

    def _learn(self, record: Record) -> None:
        if record.tier in (Tier.VRAM, Tier.DRAM):
            record.last = self.now_s
            if record.kind == Kind.NGRAM:
                record.refs = min(record.refs + 1, 1023)
            return
        code = int(self.policy.placement.chain_codes(*self._codes(record))[0])
        chain = [tier for tier in self.policy.placement.chains[code] if tier in self.places]
        if not chain:
            self.rejected += 1
            return
        if record.tier is Tier.NVME and self.stays:
            return
        admission = self.policy.placement.admissions[code]
        if record.tier is None and admission is not None:
            now = self._generation(admission.window_s)
            record.learnt[now] += 1
            if sum(record.learnt[now - back] for back in range(GENERATIONS)) < admission.hits:
                self.not_admitted += 1
                return
        for tier in chain:
            if tier is record.tier:
                return
            if self.places[tier].fits:
                self._store(tier, record)
                return
        last = Tier.DRAM if Tier.DRAM in chain else Tier.VRAM if chain == [Tier.VRAM] else None
        if last is not None and self._make_room(self.places[last]):
            self._store(last, record)
        elif record.tier is None:
            self.rejected += 1

    def _store(self, tier: Tier, record: Record) -> None:
        if record.tier is Tier.NVME:
            self.places[Tier.NVME].take_out(record)
            self.places[tier].put(record)
            record.last = self.now_s
            self._wrote()
            return
        self.places[tier].put(record)
        record.hits, record.refs, record.last, record.inserted, record.stored = 0, 0, self.now_s, self.now_s, True
        if tier is Tier.NVME:
            record.batch = self.batch
            self._wrote()

    def _make_room(self, place: Place) -> bool:
        for _ in range(len(place) + 1):
            record = place.victim()
            if record is None:
                return False
            if not self._kept(place.tier, record):
                place.take_out(record)
                self.pushed_out += 1
                return True
            place.spare(record)
        return False

    def _wrote(self) -> None:
        self.changes += 1
        self.gathered += 1
        if self.gathered >= self.flush_records:
            self._write()

    def _write(self) -> None:
        self.gathered, self.gathered_ms = 0, -1
        self.batch += 1

    def _flush(self) -> None:
        if self.gathered:
            if self.gathered_ms < 0:
                self.gathered_ms = self.now_ms
            if self.now_ms - self.gathered_ms >= self.flush_ms:
                self._write()

    # rules

    def _facts(self, record: Record) -> FactArrays:
        windows = []
        for window_s in self.policy.moves.windows_s:
            now = self._generation(window_s)
            windows.append(sum(record.seen[window_s, now - back] for back in range(GENERATIONS)))

        def one(value: int) -> np.ndarray:
            return np.array([value], np.uint32)

        return FactArrays(
            tokens=np.array([record.tokens], np.uint8),
            kind=np.array([record.kind], np.uint8),
            namespace=one(record.namespace),
            nbytes=one(record.nbytes),
            hits=one(record.hits),
            idle_s=one(self.now_s - record.last),
            age_s=one(self.now_s - record.inserted),
            refs=one(record.refs),
            accept_percent=np.array([100], np.uint8),
            window_hits=tuple(one(hits) for hits in windows),
        )

    def _takes(self, rule: MoveRule, record: Record) -> bool:
        return bool(rule.matches(self._facts(record))[0])

    def _kept(self, tier: Tier, record: Record) -> bool:
        return any(rule.source is tier and self._takes(rule, record) for rule in self.keeps)

    def _rested(self, rule: MoveRule, record: Record) -> bool:
        if record.moved is not None and self.now_s - record.moved < max(rule.cooldown_s, rule.min_residency_s):
            return False
        return self.now_s - record.inserted >= rule.min_residency_s

    def _order(self, rule: MoveRule) -> Callable[[Record], object] | None:
        if rule.order is not None:
            name, descending = rule.order
            sign = -1 if descending else 1
            values: dict[str, Callable[[Record], int]] = {
                "tokens": lambda r: r.tokens,
                "bytes": lambda r: r.nbytes,
                "hits": lambda r: r.hits,
                "idle": lambda r: self.now_s - r.last,
                "age": lambda r: self.now_s - r.inserted,
                "refs": lambda r: r.refs,
                "accept": lambda r: 100,
            }
            return lambda record: sign * values[name](record)
        if rule.using in ("s3fifo", "sieve"):
            return lambda record: (record.hits > 0, record.last)
        if rule.using == "lru":
            return lambda record: record.last
        return (lambda record: record.inserted) if rule.using == "fifo" else None

    def _apply(self, state: RuleState, tier: Tier, batch: list[Record], most: int) -> int:
        rule = state.rule
        most = state.most_now(self.now_s, most) if rule.acts else most
        if most <= 0:
            return 0
        chosen = [
            record
            for record in batch
            if record.tier is tier
            and self._takes(rule, record)
            and self._rested(rule, record)
            and not self._kept(tier, record)
        ]
        order = self._order(rule)
        if len(chosen) > most:
            chosen = (chosen if order is None else sorted(chosen, key=order))[:most]
        if not rule.acts:
            for record in chosen:
                if rule.number not in record.tried:
                    record.tried.add(rule.number)
                    self.would_have[rule.number] += 1
            return 0
        moved = returned = 0
        for record in chosen:
            done, back = self._move(state, record)
            moved += done
            returned += back
        if chosen:
            state.stopped |= moved < len(chosen)
            state.note(moved, len(chosen) - moved, returned, self.now_s)
        return moved

    def _move(self, state: RuleState, record: Record) -> tuple[bool, bool]:
        rule = state.rule
        source, target = rule.source, rule.target
        if target is not None and not self.places[target].fits:
            return False, False
        self.places[source].take_out(record)
        if source is Tier.NVME:
            self._wrote()
        if target is not None:
            self.places[target].put(record)
        if target is Tier.NVME:
            record.batch = self.batch
            self._wrote()
        back = target is not None and record.way == (target, source) and record.moved is not None
        returned = back and self.now_s - (record.moved or 0) <= state.return_window_s
        record.moved, record.way = self.now_s, (source, target)
        return True, returned

    # the sweep

    def _sweep(self, accesses: int) -> None:
        for state in self.states:
            state.stopped = False
        first, left_us = True, max(500, accesses)
        while left_us > 0:
            changes = self.changes
            worked = self._found_slice()
            for tier in (Tier.VRAM, Tier.DRAM):
                if tier in self.ruled:
                    worked |= self._table_slice(self.places[tier])
            if first and Tier.NVME in self.ruled:
                self._walk_slice(self.places[Tier.NVME])
            first = False
            if not worked:
                break
            left_us -= 60 + 5 * (self.changes - changes)

    def _found_slice(self) -> bool:
        if not self.found:
            return False
        taken = [self.found.popleft() for _ in range(min(128, len(self.found)))]
        for record in taken:
            record.waiting = False
        batch = [record for record in taken if record.tier is Tier.NVME]
        for state in self.states:
            if state.rule.action == "promote" and state.rule.source is Tier.NVME:
                self._apply(state, Tier.NVME, batch, len(batch))
        return True

    def _mine(self, place: Place) -> list[RuleState]:
        promotes = () if place.tier is Tier.NVME else ("promote",)
        return [
            s for s in self.states if s.rule.source is place.tier and s.rule.action in ("demote", "evict", *promotes)
        ]

    def _looks(self, state: RuleState, place: Place) -> bool:
        when = state.rule.when_fill
        return when is None or (not state.rule.acts and len(place) > when * place.room)

    def _due(self, place: Place) -> bool:
        return len(place) > 0 and place.passes.is_due(len(place), self.now_ms * 1_000_000)

    def _saw(self, mark: Watermark, place: Place, records: int) -> None:
        mark.seen += records
        if mark.seen >= len(place):
            mark.end_pass(len(place), place.room, self.now_s)

    def _table_slice(self, place: Place) -> bool:
        running = always = False
        for state in self._mine(place):
            mark = self.marks.get(id(state))
            if mark is None:
                always |= self._looks(state, place)
                continue
            need = mark.need(len(place), place.room, self.now_s)
            if need and state.most_now(self.now_s, 1):
                if state.rule.using is not None:
                    self._take_victims(mark, place, need)
                    return True
                running = True
        if not running and not (always and self._due(place)):
            return False
        batch = place.slice(128)
        for state in self._mine(place):
            mark = self.marks.get(id(state))
            if mark is None:
                if self._looks(state, place):
                    self._apply(state, place.tier, batch, len(batch))
            elif mark.active and state.most_now(self.now_s, 1):
                need = mark.need(len(place), place.room, self.now_s)
                self._apply(state, place.tier, batch, mark.of_slice(len(batch), need))
                self._saw(mark, place, len(batch))
        self._advance(place, len(batch))
        return True

    def _take_victims(self, mark: Watermark, place: Place, need: int) -> None:
        for _ in range(min(need, 32)):
            record = place.victim()
            if record is None:
                self._saw(mark, place, len(place) // 2 + 1)
                return
            if not self._apply(mark.state, place.tier, [record], 1):
                place.spare(record)
            self._saw(mark, place, 1)

    def _walk_slice(self, place: Place) -> None:
        running = always = False
        for state in self._mine(place):
            mark = self.marks.get(id(state))
            if mark is None:
                always |= self._looks(state, place)
                continue
            started = not mark.active
            need = mark.need(len(place), place.room, self.now_s)
            if need and started:
                self.left[id(state)] = need
            running |= need > 0 and state.most_now(self.now_s, 1) > 0
        if not running and not (always and self._due(place)):
            return
        batch, records = place.slice(512), len(place)
        for state in self._mine(place):
            mark = self.marks.get(id(state))
            if mark is None:
                if self._looks(state, place):
                    self._apply(state, place.tier, batch, len(batch))
            elif mark.active and state.most_now(self.now_s, 1):
                self.left[id(state)] -= self._apply(
                    state, place.tier, batch, mark.of_slice(len(batch), self.left[id(state)])
                )
                mark.seen += len(batch)
                if self.left[id(state)] <= 0 or mark.seen > 2 * records:
                    mark.rest(self.now_s)
        self._advance(place, len(batch))

    def _advance(self, place: Place, records: int) -> None:
        place.passes.advance(records)
        if place.scan == 0:
            place.passes.end(self.now_ms * 1_000_000)


def _passes_filter(record: int) -> bool:
    return int(mix64_many(np.array([record + 1], np.uint64))[0]) & 0xFF == 0
