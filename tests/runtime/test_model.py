"""TorchModel against Hugging Face generate on the same random weights: token for token, however the work is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from flashnest.errors import ModelError
from flashnest.runtime import model as model_module
from flashnest.runtime.forward import ForwardBatch, Scores
from flashnest.runtime.model import TorchModel
from flashnest.runtime.verify import accepted_counts
from flashnest.runtime.weights import tiny_qwen3, weights_fingerprint

BLOCKS = 24
SEED = 5


@pytest.fixture(scope="module")
def reference() -> Any:
    return tiny_qwen3(SEED)


@pytest.fixture
def model() -> Iterator[TorchModel]:
    module = tiny_qwen3(SEED)
    served = TorchModel(module, weights_fingerprint(module), "tiny_qwen3")
    served.allocate_kv(BLOCKS)
    yield served
    served.close()


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 512, length).tolist()


def generate(reference: Any, tokens: list[int], count: int) -> list[int]:
    out = reference.generate(
        torch.tensor([tokens]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return out[0, len(tokens) :].tolist()


def run(
    model: TorchModel, *rows: tuple[list[int], int, list[int]], want_logits: bool = False
) -> tuple[list[list[int]], Scores]:
    """Run rows of (new tokens, position of the first, block table); returns the arg max after each token, by row."""
    width = max(len(table) for _, _, table in rows)
    lengths = [len(tokens) for tokens, _, _ in rows]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    batch = ForwardBatch(
        token_ids=np.concatenate([np.array(tokens) for tokens, _, _ in rows]),
        positions=np.concatenate([np.arange(at, at + len(tokens)) for tokens, at, _ in rows]),
        q_starts=starts,
        context_lens=np.array([at + len(tokens) for tokens, at, _ in rows], np.int32),
        block_tables=np.array([table + [-1] * (width - len(table)) for _, _, table in rows], np.int32),
        score_rows=np.arange(starts[-1], dtype=np.int64),
        request_ids=np.arange(len(rows), dtype=np.int64),
        logit_rows=np.arange(starts[-1] if want_logits else 0, dtype=np.int64),
    )
    scores = model.forward(batch)
    return [scores.best[lo:hi].tolist() for lo, hi in itertools.pairwise(starts)], scores


def decode(model: TorchModel, tokens: list[int], count: int, table: list[int]) -> list[int]:
    """Decode greedily one token at a time after prefilling in one piece."""
    said = [run(model, (tokens, 0, table))[0][0][-1]]
    while len(said) < count:
        said.append(run(model, ([said[-1]], len(tokens) + len(said) - 1, table))[0][0][-1])
    return said


def test_decoding_says_what_generate_says(model: TorchModel, reference: Any) -> None:
    tokens = prompt(1, 45)
    expected = generate(reference, tokens, 40)
    assert len(set(expected)) > 10  # a model that repeats itself would prove little
    assert decode(model, tokens, 40, [7, 2, 11]) == expected


@pytest.mark.parametrize("slices", [[70], [32, 38], [1, 31, 33, 5], [40, 30], [69, 1]])
def test_prefill_in_slices_changes_nothing(model: TorchModel, reference: Any, slices: list[int]) -> None:
    tokens = prompt(2, 70)
    table, at, best = [9, 0, 4, 13], 0, -1
    for length in slices:
        best = run(model, (tokens[at : at + length], at, table))[0][0][-1]
        at += length
    said = [best]
    for step in range(11):
        said.append(run(model, ([said[-1]], 70 + step, table))[0][0][-1])
    assert said == generate(reference, tokens, 12)


def test_ragged_batches_give_each_sequence_its_own_answer(model: TorchModel, reference: Any) -> None:
    """Three sequences at different lengths decode beside a fourth that is still prefilling."""
    prompts = [prompt(3, 5), prompt(4, 33), prompt(5, 64), prompt(6, 50)]
    tables = [[0, 1], [2, 3, 4], [5, 6, 7], [8, 9, 10]]
    said = [[run(model, (tokens, 0, table))[0][0][-1]] for tokens, table in zip(prompts[:3], tables, strict=False)]
    late: list[int] = []
    for step in range(10):
        rows = [([s[-1]], len(t) + step, table) for s, t, table in zip(said, prompts, tables, strict=False)]
        slice_ = prompts[3][step * 10 : step * 10 + 10]
        if slice_:
            rows.append((slice_, step * 10, tables[3]))
        answers, _ = run(model, *rows)
        for own, answer in zip(said, answers, strict=False):
            own.append(answer[-1])
        if step == 4:
            late = [answers[3][-1]]
    assert said == [generate(reference, tokens, 11) for tokens in prompts[:3]]
    assert late == generate(reference, prompts[3], 1)


@pytest.mark.parametrize("wrong_at", [0, 1, 3, 6, None])
def test_rejected_drafts_leave_no_trace(model: TorchModel, reference: Any, wrong_at: int | None) -> None:
    """Each step drafts six tokens of the true continuation, one of them spoilt; their KV is overwritten later."""
    tokens = prompt(7, 30)
    expected = generate(reference, tokens, 40)
    table = [3, 8, 1, 12]
    said = [run(model, (tokens, 0, table))[0][0][-1]]
    steps = 0
    while len(said) < 30:
        draft = expected[len(said) : len(said) + 6]
        if wrong_at is not None and wrong_at < len(draft):
            draft[wrong_at] = (draft[wrong_at] + 1) % 512
        best = run(model, ([said[-1], *draft], len(tokens) + len(said) - 1, table))[0][0]
        inputs, ends = np.array([said[-1], *draft]), np.array([0, len(best)], np.int32)
        said += best[: int(accepted_counts(inputs, np.array(best), ends)[0]) + 1]
        steps += 1
    assert said[:30] == expected[:30]
    assert steps == {0: 29, 1: 15, 3: 8, 6: 5, None: 5}[wrong_at]


def test_sequences_share_the_blocks_of_a_common_head(model: TorchModel, reference: Any) -> None:
    """The second request computes only what follows the shared 64 tokens."""
    head = prompt(8, 64)
    first, second = head + prompt(9, 9), head + prompt(10, 17)
    assert decode(model, first, 12, [0, 1, 2]) == generate(reference, first, 12)
    table = [0, 1, 5, 6]
    said = [run(model, (second[64:], 64, table))[0][0][-1]]
    for step in range(11):
        said.append(run(model, ([said[-1]], len(second) + step, table))[0][0][-1])
    assert said == generate(reference, second, 12)


def whole_prompt(tokens: list[int], table: list[int], *, score_rows: list[int], logit_rows: list[int]) -> ForwardBatch:
    """Return one sequence's first pass."""
    return ForwardBatch(
        token_ids=np.array(tokens, np.int64),
        positions=np.arange(len(tokens), dtype=np.int64),
        q_starts=np.array([0, len(tokens)], np.int32),
        context_lens=np.array([len(tokens)], np.int32),
        block_tables=np.array([table], np.int32),
        score_rows=np.array(score_rows, np.int64),
        request_ids=np.array([0], np.int64),
        logit_rows=np.array(logit_rows, np.int64),
    )


def test_only_the_rows_asked_for_are_scored(model: TorchModel) -> None:
    tokens = prompt(11, 20)
    _, everything = run(model, (tokens, 0, [0]), want_logits=True)
    batch = whole_prompt(tokens, [1], score_rows=[3, 19], logit_rows=[0, 1])
    some = model.forward(batch)
    assert some.logits is not None
    assert everything.logits is not None
    assert some.logits.shape == (2, 512)
    assert some.logits.dtype == torch.float32
    torch.testing.assert_close(some.logits, everything.logits[[3, 19]], rtol=1e-4, atol=1e-4)
    assert some.best.tolist() == some.logits.argmax(-1).tolist()


def test_a_slice_without_score_rows_only_fills_kv(model: TorchModel, reference: Any) -> None:
    tokens = prompt(12, 40)
    quiet = whole_prompt(tokens[:-1], [4, 5], score_rows=[], logit_rows=[])
    assert len(model.forward(quiet).best) == 0
    assert run(model, (tokens[-1:], 39, [4, 5]))[0][0] == generate(reference, tokens, 1)


def test_only_the_logits_asked_for_leave_the_model(model: TorchModel) -> None:
    tokens = prompt(16, 9)
    _, everything = run(model, (tokens, 0, [0]), want_logits=True)
    batch = whole_prompt(tokens, [1], score_rows=[2, 5, 8], logit_rows=[1])
    some = model.forward(batch)
    assert some.logits is not None
    assert everything.logits is not None
    assert len(some.best) == 3
    torch.testing.assert_close(some.logits, everything.logits[[5]], rtol=1e-4, atol=1e-4)


def test_logits_stay_away_unless_asked_for(model: TorchModel) -> None:
    assert run(model, (prompt(13, 3), 0, [0]))[1].logits is None


def test_spec_says_what_the_config_says(model: TorchModel) -> None:
    spec = model.spec
    assert (spec.name, spec.back_end, spec.dtype) == ("tiny_qwen3", "torch", "float32")
    assert (spec.vocab_size, spec.eos_ids, spec.max_context_tokens) == (512, (2,), 2048)
    assert spec.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4  # K and V, layers, KV heads, head dim, float32


def test_several_eos_ids_come_from_generation_config() -> None:
    module = tiny_qwen3(SEED)
    module.generation_config.eos_token_id = [9, 2]
    assert TorchModel(module, 1, "tiny").spec.eos_ids == (9, 2)


def test_kv_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    served = TorchModel(tiny_qwen3(SEED), 1, "tiny")
    monkeypatch.setattr(model_module, "_free_bytes", lambda device: 10 * 32 * 512)
    served.allocate_kv(10)
    with pytest.raises(ModelError, match="KV pool of 11 blocks") as caught:
        served.allocate_kv(11)
    assert "fewer blocks" in caught.value.fix


def test_close_gives_the_module_back(reference: Any) -> None:
    module = tiny_qwen3(SEED)
    served = TorchModel(module, 1, "tiny")
    served.allocate_kv(4)
    served.close()
    served.close()
    tokens = prompt(14, 10)
    assert generate(module, tokens, 5) == generate(reference, tokens, 5)


def test_bfloat16_runs_close_to_float32(model: TorchModel) -> None:
    """Not token identity, which bfloat16 cannot give: logits within its 8 bits."""
    module = tiny_qwen3(SEED).to(torch.bfloat16)
    served = TorchModel(module, 1, "tiny")
    served.allocate_kv(4)
    tokens = prompt(15, 40)
    _, low = run(served, (tokens, 0, [0, 1]), want_logits=True)
    _, high = run(model, (tokens, 0, [0, 1]), want_logits=True)
    assert low.logits is not None
    assert high.logits is not None
    correlation = torch.corrcoef(torch.stack([low.logits.flatten(), high.logits.flatten()]))[0, 1]
    assert correlation > 0.99
