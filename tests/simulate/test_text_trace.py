"""Traces of text against a server that is written out step by step, and what their hits are."""

from __future__ import annotations

import random

import numpy as np
import pytest

from flashnest.hashing import chunk_keys, chunk_seed
from flashnest.record import CHUNK_TOKENS, Kind, namespace_salt
from flashnest.simulate import LOOKUP, Trace, generated_trace, text_trace
from flashnest.simulate.decoding import Serving, Spoken, decode
from flashnest.simulate.numbering import number_keys
from flashnest.workload.prompts import TextPrompt

Access = tuple[int, str, tuple[object, ...]]
"""Step, what is done, the record: its kind, namespace and tokens, which stand for its key."""


def serve(requests: list[Spoken], serving: Serving) -> list[Access]:
    """Serve with lists and loops: every step looks at every running request, as the engine does."""
    waiting = list(enumerate(requests))
    running: list[dict[str, int]] = []
    asks: list[tuple[int, int, Access]] = []
    step = 0
    while waiting or running:
        while waiting and len(running) < serving.concurrency:
            i, request = waiting.pop(0)
            running.append({"i": i, "computed": 0, "known": request.prompt, "learned": 0, "chunks": 0})
            if serving.chunks:
                chunks = range((request.prompt - 1) // CHUNK_TOKENS)
                asks += [(step, i, (step, "ask", chunk(request, c))) for c in chunks]
        teach: list[tuple[int, int, Access]] = []
        for state in list(running):
            request = requests[state["i"]]
            answers(request, serving, state, step, asks, teach)
            if state["known"] == len(request.tokens):
                running.remove(state)
        asks += teach
        step += 1
    order = sorted(range(len(asks)), key=lambda at: (asks[at][0], asks[at][2][1], asks[at][1]))
    return [asks[at][2] for at in order]


def answers(
    request: Spoken,
    serving: Serving,
    state: dict[str, int],
    step: int,
    asks: list[tuple[int, int, Access]],
    teach: list[tuple[int, int, Access]],
) -> None:
    """Let one request do its step."""
    i, tokens = state["i"], request.tokens.tolist()
    if state["computed"] < request.prompt:
        state["computed"] = min(request.prompt, state["computed"] + serving.prefill_tokens)
    else:
        state["computed"] = state["known"]
    if state["computed"] == state["known"]:
        fitting = [n for n in reversed(serving.lengths) if n <= state["known"]]
        asks += [(step, i, (step, "ask", gram(request, state["known"], n))) for n in fitting]
        state["known"] += 1
    while serving.chunks and (state["chunks"] + 1) * CHUNK_TOKENS <= state["computed"]:
        teach.append((step, i, (step, "teach", chunk(request, state["chunks"]))))
        state["chunks"] += 1
    final = state["known"] == len(tokens)
    stop = state["known"] if final else state["known"] - serving.chain_tokens + 1
    for at in range(max(state["learned"], serving.lengths[0]), stop):
        teach += [(step, i, (step, "teach", gram(request, at, n))) for n in serving.lengths if n <= at]
    state["learned"] = max(state["learned"], stop)


def gram(request: Spoken, end: int, n: int) -> tuple[object, ...]:
    return (int(Kind.NGRAM), request.namespace, tuple(request.tokens[end - n : end].tolist()))


def chunk(request: Spoken, index: int) -> tuple[object, ...]:
    """A chunk is everything in front of it too."""
    return (int(Kind.CHUNK), request.namespace, tuple(request.tokens[: (index + 1) * CHUNK_TOKENS].tolist()))


def accesses_of(trace: Trace) -> list[tuple[int, str, int]]:
    ops = np.where(trace.op == LOOKUP, "ask", "teach").tolist()
    return list(zip(trace.step.tolist(), ops, trace.record.tolist(), strict=True))


def numbered(accesses: list[Access]) -> list[tuple[int, str, int]]:
    """Number the records by first sight."""
    numbers: dict[tuple[object, ...], int] = {}
    return [(step, op, numbers.setdefault(record, len(numbers))) for step, op, record in accesses]


def random_requests(rng: random.Random, count: int) -> list[Spoken]:
    """Requests over a tiny vocabulary, so that n-grams repeat; some begin as others did, so that chunks do."""
    requests: list[Spoken] = []
    for _ in range(count):
        head = requests[-1].tokens[:70] if requests and rng.random() < 0.4 else np.zeros(0, np.int32)
        tail = [rng.randrange(3) for _ in range(rng.randrange(2, 90))]
        tokens = np.concatenate([head, np.array(tail, np.int32)])
        namespace = requests[-1].namespace if len(head) else rng.choice(["acme", "beta"])
        requests.append(Spoken(tokens, rng.randrange(1, len(tokens)), namespace))
    return requests


@pytest.mark.parametrize("seed", range(12))
def test_a_trace_is_what_a_server_does(seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, 12)
    serving = Serving(
        lengths=rng.choice([(2, 4), (1, 3, 8), (8, 16, 32)]),
        concurrency=rng.choice([1, 3, 32]),
        prefill_tokens=rng.choice([16, 40, 512]),
        chain_tokens=rng.choice([1, 8]),
        chunks=rng.random() < 0.7,
    )
    trace = decode(requests, serving, name="t", source="t")
    assert accesses_of(trace) == numbered(serve(requests, serving))
    trace.check()


def test_keys_are_the_tables_own() -> None:
    """What the trace calls one record is one key of `hashing`: two namespaces never share one."""
    tokens = np.arange(64, dtype=np.int32)
    both = [Spoken(tokens, 40, "acme"), Spoken(tokens, 40, "beta")]
    trace = decode(both, Serving(lengths=(8,), concurrency=1), name="t", source="t")
    alone = decode(both[:1], Serving(lengths=(8,), concurrency=1), name="t", source="t")
    assert trace.records == 2 * alone.records
    assert len(chunk_keys(tokens[:-1], chunk_seed(namespace_salt("acme"), 0))) == 1


def test_a_step_has_the_time_of_a_decode_step() -> None:
    trace = text_trace([TextPrompt("one two three", "four five six", "default")], output_tokens=3, step_ms=20.5)
    assert trace.step_time_ms.tolist() == [0, 20, 41]


def test_repeats_are_asked_for_again() -> None:
    """Answers quote their prompts, so a third of the questions hit even without repeats; with them half do."""
    shares = []
    for repeat_share in (0.0, 0.8):
        trace = generated_trace(repeat_share, requests=48, output_tokens=32, concurrency=8)
        taught_at = np.full(trace.records, trace.steps)
        teaches = trace.op != LOOKUP
        np.minimum.at(taught_at, trace.record[teaches], trace.step[teaches])
        hit = taught_at[trace.record] < trace.step
        questions = np.unique(trace.group[~teaches])
        shares.append(len(np.unique(trace.group[~teaches & hit])) / len(questions))
        assert trace.name == f"repeat_{100 * repeat_share:.0f}"
    assert shares[1] > 1.2 * shares[0]


def test_numbers_follow_first_sight_whatever_the_table_size() -> None:
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 90_000, 400_000).astype(np.uint64)  # 0 among them, and the table doubles
    record, first = number_keys(keys)
    values, index, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(index))
    assert record.tolist() == order[inverse].tolist()
    assert first.tolist() == np.sort(index).tolist()
    assert len(values) == len(first)
