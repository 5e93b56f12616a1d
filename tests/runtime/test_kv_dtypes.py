"""KV kept in another dtype than the weights compute in: half the bytes, nearly the same scores, drafts as before."""

from __future__ import annotations

import pytest
import torch
from engine_setup import Rig, open_tiers, repetitive_prompts, tiny_module

from flashnest.app.model_check import perplexity
from flashnest.runtime.model import TorchModel
from flashnest.runtime.request import SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = repetitive_prompts(8, sampling=SamplingParams(20, ignore_eos=True, logprobs=0))


def model(kv_dtype: str) -> TorchModel:
    return TorchModel(*tiny_module(5), "tiny", kv_dtype=kv_dtype)


@pytest.mark.parametrize(("kv_dtype", "nbytes"), [("auto", 512), ("float32", 512), ("bfloat16", 256), ("float16", 256)])
def test_the_spec_counts_the_pools_bytes(kv_dtype: str, nbytes: int) -> None:
    served = model(kv_dtype)
    assert served.spec.kv_bytes_per_token == nbytes  # K and V, 2 layers, 2 heads of 16
    assert served.spec.dtype == "float32"
    assert (served.spec.kv_version == model("auto").spec.kv_version) == (nbytes == 512)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
def test_drafts_do_not_change_what_is_said(kv_dtype: str) -> None:
    with open_tiers() as tiers, Rig(model(kv_dtype), tiers, max_requests=1, max_draft_tokens=0) as rig:
        expected = rig.say(PROMPTS)
    with open_tiers() as tiers, Rig(model(kv_dtype), tiers) as rig:
        assert rig.say(PROMPTS) == expected
        requests = rig.serve(PROMPTS)
        assert [r.output.tolist() for r in requests] == expected
        assert all(r.reused_tokens >= 32 for r in requests)
        assert rig.drafts()[:, 2].sum() > len(PROMPTS) * 20 // 4


@pytest.mark.parametrize(("kv_dtype", "error"), [("bfloat16", 0.05), ("float16", 0.005)])
def test_scores_are_those_of_float32_kv_within_its_bits(kv_dtype: str, error: float) -> None:
    text = torch.randint(3, 512, (2, 128), generator=torch.Generator().manual_seed(1)).numpy().astype("int32")
    found = []
    for kept in ("float32", kv_dtype):
        served = model(kept)
        served.allocate_kv(4)
        found.append(perplexity(served, text))
        served.close()
    assert found[0] == pytest.approx(found[1], rel=error)
    assert found[0] != found[1]
