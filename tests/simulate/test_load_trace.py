"""`load_trace`: which file is what, what each becomes, and what is said of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashnest.errors import WorkloadError
from flashnest.record import Kind, namespace_id
from flashnest.simulate import INSERT, LOOKUP, Trace, load_trace

DATA = Path(__file__).parents[3] / "shared" / "data"
MOONCAKE = [
    {"timestamp": 1000, "input_length": 1024, "output_length": 5, "hash_ids": [7, 8]},
    {"timestamp": 1000, "input_length": 512, "output_length": 5, "hash_ids": [7]},
    {"timestamp": 4000, "input_length": 1024, "output_length": 5, "hash_ids": [7, 9]},
]


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def accesses(trace: Trace) -> list[tuple[int, str, int, int]]:
    """Return (step, op, record, group) of each access."""
    ops = np.where(trace.op == LOOKUP, "ask", "teach").tolist()
    return list(zip(trace.step.tolist(), ops, trace.record.tolist(), trace.group.tolist(), strict=True))


def test_mooncake_lines_of_one_time_are_a_step(tmp_path: Path) -> None:
    trace = load_trace(write_lines(tmp_path / "any.name", *MOONCAKE))
    assert accesses(trace) == [
        *((0, "ask", 0, 0), (0, "ask", 1, 1), (0, "ask", 0, 2)),
        *((0, "teach", 0, -1), (0, "teach", 1, -1), (0, "teach", 0, -1)),
        *((1, "ask", 0, 3), (1, "ask", 2, 4), (1, "teach", 0, -1), (1, "teach", 2, -1)),
    ]
    assert trace.step_time_ms.tolist() == [0, 3000]
    assert (set(trace.tokens.tolist()), set(trace.kind.tolist())) == ({32}, {int(Kind.CHUNK)})
    assert set(trace.nbytes.tolist()) == {72}


def test_mooncake_limit_and_record_size(tmp_path: Path) -> None:
    trace = load_trace(write_lines(tmp_path / "m", *MOONCAKE), limit=2, nbytes=100)
    assert (trace.steps, trace.records, set(trace.nbytes.tolist())) == (1, 2, {100})


@pytest.mark.parametrize(
    ("name", "references", "blocks"), [("conversation", 288_500, 182_790), ("synthetic", 121_877, 43_924)]
)
def test_the_released_mooncake_traces(name: str, references: int, blocks: int) -> None:
    path = DATA / f"mooncake_{name}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    trace = load_trace(path)
    assert (trace.questions, trace.records, len(trace)) == (references, blocks, 2 * references)


def test_prompts_become_requests_with_made_up_answers(tmp_path: Path) -> None:
    rows = [{"prompt": "Say what a table of n-grams is. It is short."}, {"text": "And what is a tier? A medium."}]
    trace = load_trace(write_lines(tmp_path / "p.jsonl", *rows), lengths=(2, 4), output_tokens=6, concurrency=1)
    assert trace.questions == 12  # six tokens of two answers, and prompts too short for a chunk
    assert trace.steps == 12
    assert set(trace.tokens.tolist()) == {2, 4}


def test_a_turn_holds_what_was_said_and_comes_after_it(tmp_path: Path) -> None:
    """So its prompt is longer, and its conversation's chunks are asked for again."""
    turns = [" ".join(f"word{i}" for i in range(a, a + 60)) for a in (0, 100)]
    row = {"turns": turns, "answers": ["yes it is", "no it is not"], "namespace": "acme"}
    other = {"prompt": "hello there my friend", "answer": "good day"}
    trace = load_trace(write_lines(tmp_path / "p.jsonl", row, other), lengths=(8,), concurrency=2)
    chunk_asks = (trace.op == LOOKUP) & (trace.kind[trace.record] == Kind.CHUNK)
    asked = trace.record[chunk_asks].tolist()
    steps = trace.step[chunk_asks].tolist()
    first = [r for r, s in zip(asked, steps, strict=True) if s == 0]
    second = [r for r, s in zip(asked, steps, strict=True) if s > 0]
    assert len(second) > len(first) > 0
    assert second[: len(first)] == first
    assert min(s for s in steps if s > 0) == 3  # `yes it is` is three tokens
    assert trace.namespaces == {namespace_id("acme"): "acme", namespace_id("default"): "default"}


def test_spec_bench_is_read(tmp_path: Path) -> None:
    path = DATA / "spec_bench.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    trace = load_trace(path, limit=100, output_tokens=16)
    assert trace.source.endswith("180 requests, tokens by pieces")  # the first 80 lines have two turns
    assert trace.records > 1000


def test_a_plain_text_is_read_on_as_its_own_answer(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(" ".join(f"w{i}" for i in range(1000)))
    trace = load_trace(path, lengths=(8,), output_tokens=44, chunks=False, concurrency=1)
    assert trace.steps == trace.questions == 3 * 44 + 1  # 300 tokens a passage; of the 100 left 99 are a prompt
    assert load_trace(path, output_tokens=44, limit=2, concurrency=1).steps == 88


def test_a_real_tokenizer_is_used(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "one": 1, "two": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = write_lines(tmp_path / "t.jsonl", {"prompt": "one two " * 10, "answer": "one two one two"})
    trace = load_trace(text, lengths=(4,), tokenizer=tmp_path)
    assert trace.source.endswith(f"tokens by {tmp_path.name}")
    assert trace.records == 2  # `one two one two` and `two one two one`
    with pytest.raises(WorkloadError, match=r"cannot read the tokenizer .*none\.json"):
        load_trace(text, tokenizer=tmp_path / "none.json")


def test_progress_is_told(tmp_path: Path) -> None:
    shares: list[float] = []
    rows = [{"prompt": f"prompt {i} of many", "answer": "an answer"} for i in range(130)]
    load_trace(write_lines(tmp_path / "p.jsonl", *rows), progress=shares.append)
    assert shares == sorted(shares)
    assert len(shares) == 3


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ((MOONCAKE[0], {"timestamp": 1}), ":2 is no Mooncake request"),
        ((MOONCAKE[0], "", '{"timestamp": 1,'), ":3 is not JSON"),
        ((MOONCAKE[0], {"timestamp": -1, "hash_ids": [1]}), ":2 is no Mooncake request"),
        ((MOONCAKE[0], {"timestamp": 1, "hash_ids": ["a"]}), ":2 is no Mooncake request"),
        (({"timestamp": 1, "hash_ids": []},), "asks for no block"),
        (({"prompt": "a b"}, {"promt": "a b"}), ":2 holds no prompt"),
        (({"prompt": "a b"}, "[1, 2]"), ":2 holds no prompt"),
        (({"prompt": "a b"}, {"prompt": "  "}), ":2 holds no prompt"),
        (({"prompt": "a b"}, {"turns": ["a", 3]}), ":2 holds no prompt"),
        (({"prompt": "a b"}, "{"), ":2 is not JSON"),
        (({"turns": ["a b", "c"], "answers": ["d"]},), ":1 has 1 answers to 2 turns"),
        (({"prompt": "a b", "namespace": 3},), ":1: namespace is 3"),
        (("not JSON at all",), ":1 is not JSON"),
        (({"some": "thing"},), ":1 holds no prompt"),
        (("", " "), " is empty"),
    ],
)
def test_a_broken_file_is_said_with_its_line(tmp_path: Path, rows: tuple[Any, ...], what: str) -> None:
    with pytest.raises(WorkloadError) as error:
        load_trace(write_lines(tmp_path / "t.jsonl", *rows))
    assert what in error.value.what
    assert "t.jsonl" in error.value.what


def test_files_of_no_kind(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(WorkloadError, match=r"cannot read the trace .*\n.*No such file"):
        load_trace(path)
    path.write_bytes(b"\x1f\x8b\x08\x00 packed \xff")
    with pytest.raises(WorkloadError, match=r"is no trace\nit is not UTF-8.*\n.*unpacked"):
        load_trace(path)
    path.write_bytes(b"abc\0\0\0def")
    with pytest.raises(WorkloadError, match="zero bytes"):
        load_trace(path)
    path.write_text("one")
    with pytest.raises(WorkloadError, match="nothing to make a trace of"):
        load_trace(path)


@pytest.mark.parametrize(
    "options",
    [
        {"lengths": ()},
        {"lengths": (8, 4)},
        {"lengths": (0, 4)},
        {"lengths": (8, 64)},
        {"lengths": (1, 2, 3, 4, 5, 6, 7, 8, 9)},
        {"concurrency": 0},
        {"output_tokens": 0},
        {"limit": 0},
        {"step_ms": 0.0},
        {"nbytes": 0},
    ],
)
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_lines(tmp_path / "t.jsonl", {"prompt": "a b c", "answer": "d e f"})
    with pytest.raises(WorkloadError):
        load_trace(path, **options)


def test_lookups_come_before_inserts_in_every_step(tmp_path: Path) -> None:
    trace = load_trace(write_lines(tmp_path / "t.jsonl", {"prompt": "a b c " * 40, "answer": "d e f " * 20}))
    trace.check()
    assert set(trace.op.tolist()) == {LOOKUP, INSERT}
