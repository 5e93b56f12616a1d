"""The emulated back end says its reference and takes the roofline's time, on a clock that the test moves."""

from __future__ import annotations

import time

import numpy as np
import pytest

from flashnest.errors import ModelError
from flashnest.record import I32Array
from flashnest.runtime.emulated import EmulatedModel, Roofline, emulated_spec, sleep_until
from flashnest.runtime.forward import ForwardBatch, Model

EOS = 0
PROMPT = np.array([10, 11, 12, 13], np.int32)
REFERENCE = np.array([20, 21, 22], np.int32)

KV_BYTES = 36 * 8 * 128 * 2 * 2
"""Qwen3-8B: layers x KV heads x head_dim x (K, V) x FP16 = 147 KB (facts R1)."""


def _roofline(bandwidth_gb_s: float = 1008, ops_t: float = 660.6, overhead_s: float = 0.0) -> Roofline:
    """Return Qwen3-8B W8A8's roofline (facts R1); attention: 4 x 36 layers x 32 heads x 128."""
    return Roofline(
        weight_bytes=8.2e9,
        bandwidth_bytes_per_s=bandwidth_gb_s * 1e9,
        kv_bytes_per_token=KV_BYTES,
        parameters=8.19e9,
        ops_per_s=ops_t * 1e12,
        attention_ops_per_pair=4 * 36 * 32 * 128,
        launch_overhead_s=overhead_s,
    )


class VirtualClock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def wait_until(self, deadline_s: float) -> None:
        self.waits.append(deadline_s)
        self.now_s = max(self.now_s, deadline_s)


def _model(
    clock: VirtualClock,
    roofline: Roofline | None = None,
    memory_bytes: float | None = None,
    eos: tuple[int, ...] = (EOS,),
) -> EmulatedModel:
    spec = emulated_spec(
        "qwen3_8b",
        dtype="w8a8",
        vocab_size=1000,
        eos_ids=eos,
        max_context_tokens=40960,
        kv_bytes_per_token=KV_BYTES,
    )
    return EmulatedModel(
        spec, roofline or _roofline(), memory_bytes=memory_bytes, clock_s=clock, wait_until=clock.wait_until
    )


def _batch(parts: list[tuple[int, list[int], list[int]]], want: list[int] | None = None) -> ForwardBatch:
    """Return a batch of (request id, positions, token ids); scores wanted of every token unless `want` is given."""
    positions = [p for _, places, _ in parts for p in places]
    tokens = [t for _, _, ids in parts for t in ids]
    counts = [len(places) for _, places, _ in parts]
    return ForwardBatch(
        token_ids=np.array(tokens, np.int64),
        positions=np.array(positions, np.int64),
        q_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        context_lens=np.array([places[-1] + 1 for _, places, _ in parts], np.int32),
        block_tables=np.zeros((len(parts), 1), np.int32),
        score_rows=np.array(range(len(tokens)) if want is None else want, np.int64),
        request_ids=np.array([i for i, _, _ in parts], np.int64),
        logit_rows=np.array([], np.int64),
    )


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


# --- the roofline -----------------------------------------------------------------------------------------------------


def test_weights_alone_take_8_1_ms_on_a_4090() -> None:
    """Facts R1."""
    assert _roofline().step_seconds(1, 0) == pytest.approx(8.1e-3, rel=0.01)


@pytest.mark.parametrize(
    ("bandwidth_gb_s", "context_tokens", "expected_ms"),
    [(1008, 95_000, 22), (936, 95_000, 24), (1792, 150_000, 17)],
    ids=["4090", "3090", "5090"],
)
def test_full_step_of_128_streams_agrees_with_the_facts(
    bandwidth_gb_s: float, context_tokens: int, expected_ms: float
) -> None:
    """Facts R1: 22 ms on a 4090, 24 on a 3090, 17 on a 5090, each full of KV."""
    step_ms = 1e3 * _roofline(bandwidth_gb_s).step_seconds(128, context_tokens, 95_000)
    assert step_ms == pytest.approx(expected_ms, rel=0.05)


def test_few_tokens_cost_what_one_costs_and_many_are_bound_by_compute() -> None:
    roofline = _roofline()
    one, eight, many = (roofline.step_seconds(n, 0) for n in (1, 8, 4096))
    assert eight == pytest.approx(one, rel=0.001)
    assert many == pytest.approx(2 * 8.19e9 * 4096 / 660.6e12)


def test_attention_counts_pairs() -> None:
    roofline = _roofline()
    extra = roofline.step_seconds(4096, 4096, 4096 * 2048) - roofline.step_seconds(4096, 4096, 0)
    assert extra == pytest.approx(4 * 36 * 32 * 128 * 4096 * 2048 / 660.6e12)


def test_overhead_is_added_and_efficiencies_stretch() -> None:
    plain = Roofline(1e9, 1e12, 0, 1e9, 1e12)
    slow = Roofline(1e9, 1e12, 0, 1e9, 1e12, bandwidth_efficiency=0.5, launch_overhead_s=0.25)
    assert plain.step_seconds(0, 0) == pytest.approx(1e-3 + 50e-6)
    assert slow.step_seconds(0, 0) == pytest.approx(2e-3 + 0.25)
    half = Roofline(0, 1e12, 0, 1e9, 1e12, compute_efficiency=0.5, launch_overhead_s=0.0)
    assert half.step_seconds(10, 0) == pytest.approx(0.04)


# --- what it says -----------------------------------------------------------------------------------------------------


def _say(model: EmulatedModel, prompt: I32Array, count: int, request_id: int = 7) -> list[int]:
    """Decode `count` tokens one by one, as the engine does."""
    tokens = prompt.tolist()
    for _ in range(count):
        at = len(tokens) - 1
        tokens.append(int(model.forward(_batch([(request_id, [at], [tokens[at]])])).best[0]))
    return tokens[len(prompt) :]


def test_reference_is_said_then_eos(clock: VirtualClock) -> None:
    model: Model = _model(clock)
    assert isinstance(model, EmulatedModel)
    model.register(7, PROMPT, REFERENCE)
    assert _say(model, PROMPT, 4) == [20, 21, 22, EOS]


def test_prefill_scores_the_prompts_own_next_tokens(clock: VirtualClock) -> None:
    model = _model(clock)
    model.register(7, PROMPT, REFERENCE)
    scores = model.forward(_batch([(7, [0, 1, 2, 3], [10, 11, 12, 13])]))
    assert scores.best.tolist() == [11, 12, 13, 20]
    assert scores.best.dtype == np.int64
    assert scores.logits is None


def test_wrong_draft_tokens_do_not_change_what_is_said(clock: VirtualClock) -> None:
    model = _model(clock)
    model.register(7, PROMPT, REFERENCE)
    assert model.forward(_batch([(7, [3, 4, 5], [13, 999, 998])])).best.tolist() == [20, 21, 22]


def test_requests_of_one_batch_keep_apart_and_only_wanted_rows_are_scored(clock: VirtualClock) -> None:
    model = _model(clock)
    model.register(1, PROMPT, REFERENCE)
    model.register(2, np.array([50, 51], np.int32), np.array([60], np.int32))
    batch = _batch([(2, [0, 1], [50, 51]), (1, [3, 4], [13, 20])], want=[1, 2, 3])
    assert model.forward(batch).best.tolist() == [60, 20, 21]


def test_past_eos_it_goes_on_the_same_each_time_without_repeats_to_draft(clock: VirtualClock) -> None:
    model = _model(clock)
    model.register(7, PROMPT, REFERENCE)
    said = _say(model, PROMPT, 64)
    assert said == _say(model, PROMPT, 64)
    tail = said[4:]
    assert EOS not in tail
    assert len(set(tail)) > 50
    assert all(0 <= token < 1000 for token in tail)


def test_without_eos_ids_or_reference_it_still_says_tokens(clock: VirtualClock) -> None:
    model = _model(clock, eos=())
    model.register(7, PROMPT, None)
    assert all(0 <= token < 1000 for token in _say(model, PROMPT, 8))


def test_many_requests_and_long_texts_make_room(clock: VirtualClock) -> None:
    model = _model(clock)
    long = np.arange(3000, dtype=np.int32) % 900 + 1
    for i in range(50):
        model.register(i, np.array([i + 1], np.int32), long + i % 5)
    batch = _batch([(i, [2999], [5]) for i in range(50)])
    assert model.forward(batch).best.tolist() == [int(long[2999]) + i % 5 for i in range(50)]


def test_released_slot_is_used_again_and_its_request_is_unknown(clock: VirtualClock) -> None:
    model = _model(clock)
    for i in range(200):
        model.register(i, PROMPT, REFERENCE)
        model.release(i)
    model.release(12345)
    assert model._texts.shape[0] == 16
    with pytest.raises(ModelError, match="does not know request 3"):
        model.forward(_batch([(3, [3], [13])]))


def test_registering_again_replaces_the_text(clock: VirtualClock) -> None:
    model = _model(clock)
    model.register(7, PROMPT, REFERENCE)
    model.register(7, PROMPT, REFERENCE[:1])
    assert _say(model, PROMPT, 2) == [20, EOS]


def test_close_forgets_requests_and_can_be_called_twice(clock: VirtualClock) -> None:
    model = _model(clock)
    model.register(7, PROMPT, REFERENCE)
    model.close()
    model.close()
    with pytest.raises(ModelError):
        model.forward(_batch([(7, [3], [13])]))


# --- the time it takes ------------------------------------------------------------------------------------------------


def test_forward_takes_the_rooflines_time_from_its_start(clock: VirtualClock) -> None:
    model = _model(clock)
    model.register(1, PROMPT, REFERENCE)
    model.register(2, PROMPT, REFERENCE)
    model.forward(_batch([(1, [3], [13]), (2, [3, 4], [13, 20])]))
    expected = _roofline().step_seconds(3, 4 + 5, 4 + 4 + 5)
    assert clock.now_s - 100.0 == pytest.approx(expected)
    assert model.emulated_seconds == pytest.approx(expected)


def test_cpu_work_inside_forward_is_part_of_its_time() -> None:
    """The deadline counts from the call's start: a clock that moves while forward works does not push it back."""
    reads = iter([100.0, 100.0125])
    waits: list[float] = []
    spec = emulated_spec("m", dtype="w8a8", vocab_size=100, eos_ids=(0,), max_context_tokens=64, kv_bytes_per_token=8)
    model = EmulatedModel(spec, _roofline(), clock_s=lambda: next(reads), wait_until=waits.append)
    model.register(1, PROMPT, REFERENCE)
    model.forward(_batch([(1, [3], [13])]))
    step_s = _roofline().step_seconds(1, 4, 4)
    assert waits == [pytest.approx(100.0 + step_s)]
    assert model.late_seconds == pytest.approx(0.0125 - step_s)


def test_sleep_until_a_past_deadline_returns_at_once_and_a_future_one_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: 50.0)
    monkeypatch.setattr(time, "sleep", naps.append)
    sleep_until(49.0)
    sleep_until(50.25)
    assert naps == [0.25]


# --- memory -----------------------------------------------------------------------------------------------------------


def test_kv_fits_beside_the_weights_as_the_facts_say(clock: VirtualClock) -> None:
    """Facts R1: a 24 GB card has room for about 95 K tokens, 14 GB, once runtime overhead is taken off."""
    model = _model(clock, memory_bytes=8.2e9 + 14e9)
    assert model.kv_blocks_that_fit is not None
    assert model.kv_blocks_that_fit * 32 == pytest.approx(95_000, rel=0.01)
    model.allocate_kv(model.kv_blocks_that_fit)
    with pytest.raises(ModelError, match="do not fit"):
        model.allocate_kv(model.kv_blocks_that_fit + 1)


def test_memory_that_is_not_known_is_not_checked(clock: VirtualClock) -> None:
    model = _model(clock)
    assert model.kv_blocks_that_fit is None
    model.allocate_kv(10**9)


def test_spec_says_emulated_and_its_kv_version_follows_name_and_dtype() -> None:
    def version(name: str, dtype: str) -> int:
        return emulated_spec(
            name, dtype=dtype, vocab_size=9, eos_ids=(), max_context_tokens=9, kv_bytes_per_token=9
        ).kv_version

    assert len({version("a", "x"), version("a", "y"), version("b", "x")}) == 3
    assert version("a", "x") == version("a", "x") < 2**32
