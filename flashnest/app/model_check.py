"""What a model's cheaper forms cost in quality and bring in speed: perplexity and ms a forward, measured as served.

Each form goes through `TorchModel`: the same attention, packed layers and KV blocks as in a run. The text is bundled
prose (`workload.text`), and each form reads the same tokens, so their ratio says more than either number. One process
holds the weights once: quantisation replaces them in place, so the plain forms come first. Prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flashnest.app.weights import OpenWeights, open_weights
from flashnest.config import ModelConfig
from flashnest.errors import WorkloadError
from flashnest.record import CHUNK_TOKENS, I32Array, I64Array
from flashnest.runtime.forward import ForwardBatch, Model, ModelSpec
from flashnest.workload.text import load_corpus

if TYPE_CHECKING:
    from flashnest.runtime.model import TorchModel

WINDOW_TOKENS: Final = 256
"""Tokens of text read in one piece; the first has nothing before it and is not judged."""
CONTEXT_TOKENS: Final = 128
"""Context of each sequence in the timed forwards."""
FORWARDS: Final[Mapping[str, tuple[int, int]]] = {
    "1 x 1": (1, 1),
    "1 x 9": (1, 9),
    "8 x 1": (8, 1),
    "32 x 1": (32, 1),
    "1 x 256": (1, 256),
}
"""Timed forwards, as sequences x new tokens: one decoding, one with a draft of 8, eight, thirty-two, a prompt slice."""
_BLOCKS: Final = max(n * -(-(CONTEXT_TOKENS + tokens) // CHUNK_TOKENS) for n, tokens in FORWARDS.values())
_ENOUGH_S: Final = 0.5
_WORD_TOKENS: Final = 1.2
"""Tokens of a word of English prose are more than this with any tokenizer, so this many words are enough."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way to serve the weights: quant as in `ModelConfig`; kv_dtype "auto" keeps KV in the weights' dtype."""

    quant: str
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class FormFigures:
    """What a form measured. forward_ms: by the names of `FORWARDS`, medians; weight_bytes: what the weights take."""

    form: Form
    spec: ModelSpec
    perplexity: float
    forward_ms: Mapping[str, float]
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Check:
    """A model opened for checking: `source` says what text is read, `tokens` how much of it."""

    weights: OpenWeights
    text: I32Array
    source: str

    def figures(self, forms: tuple[Form, ...]) -> Iterator[FormFigures]:
        """Measure each form, one after another; quantised ones must come last."""
        from flashnest.runtime.weights import as_served

        weights, quant = self.weights, "none"
        for form in forms:
            if form.quant != quant:
                module, fingerprint = as_served(weights.module, quant=form.quant)
                weights, quant = replace(weights, module=module, fingerprint=fingerprint), form.quant
            model = weights.serve(form.kv_dtype, keep=True)
            try:
                yield _figures(form, model, weights.module, self.text)
            finally:
                model.close()


def open_check(config: ModelConfig, *, tokens: int, debug: bool = False) -> Check:
    """Load the weights, unquantised whatever `config` says, and cut `tokens` tokens of text into whole windows.

    Raises ModelError for the model, WorkloadError where there is less text than one window.
    """
    weights = open_weights(config.model_copy(update={"quant": "none"}), debug=debug)
    corpus = load_corpus(min_words=int(tokens / _WORD_TOKENS) + 1)
    ids = weights.ids("\n\n".join(corpus.documents))[:tokens]
    count = len(ids) // WINDOW_TOKENS
    if count == 0:
        raise WorkloadError(f"{tokens} tokens of text are less than one window of {WINDOW_TOKENS}", fix="ask for more")
    return Check(weights, ids[: count * WINDOW_TOKENS].reshape(count, WINDOW_TOKENS), corpus.source)


def _figures(form: Form, model: TorchModel, module: Any, text: I32Array) -> FormFigures:
    model.allocate_kv(_BLOCKS)
    return FormFigures(
        form=form,
        spec=model.spec,
        perplexity=perplexity(model, text),
        forward_ms={name: _forward_ms(model, *shape) for name, shape in FORWARDS.items()},
        weight_bytes=_weight_bytes(module),
    )


def perplexity(model: Model, text: I32Array) -> float:
    """Return exp of the mean negative log-likelihood of each window's tokens after its first; text int32 (n, window).

    The model needs blocks for one window.
    """
    total = 0.0
    for window in text:
        batch = _batch(window[None].astype(np.int64), 0, np.arange(len(window) - 1, dtype=np.int64))
        logits = model.forward(replace(batch, logit_rows=np.arange(len(window) - 1, dtype=np.int64))).logits
        if logits is None:
            raise AssertionError("a model over real weights has logits")
        said = logits.log_softmax(-1).numpy()[np.arange(len(window) - 1), window[1:]]
        total -= float(said.sum(dtype=np.float64))
    return float(np.exp(total / (text.shape[0] * (text.shape[1] - 1))))


def _forward_ms(model: Model, sequences: int, tokens: int) -> float:
    """Return the median time of a forward; two runs come before, and at least three count."""
    ids = np.random.default_rng(0).integers(0, model.spec.vocab_size, (sequences, tokens))
    scored = np.arange(sequences * tokens, dtype=np.int64) if tokens < CHUNK_TOKENS else np.array([tokens - 1])
    batch = _batch(ids, CONTEXT_TOKENS, scored)
    times: list[float] = []
    until = time.perf_counter() + _ENOUGH_S
    while len(times) < 5 or time.perf_counter() < until:
        before = time.perf_counter()
        model.forward(batch)
        times.append(time.perf_counter() - before)
    return 1e3 * float(np.median(times[2:]))


def _batch(ids: I64Array, context: int, score_rows: I64Array) -> ForwardBatch:
    """Return a forward of ids int64 (sequences, tokens), each after `context` tokens, with blocks of its own."""
    sequences, tokens = ids.shape
    width = -(-(context + tokens) // CHUNK_TOKENS)
    return ForwardBatch(
        token_ids=ids.reshape(-1),
        positions=np.tile(np.arange(context, context + tokens, dtype=np.int64), sequences),
        q_starts=(np.arange(sequences + 1) * tokens).astype(np.int32),
        context_lens=np.full(sequences, context + tokens, np.int32),
        block_tables=np.arange(sequences * width, dtype=np.int32).reshape(sequences, width),
        score_rows=score_rows,
        request_ids=np.arange(sequences, dtype=np.int64),
        logit_rows=np.zeros(0, np.int64),
    )


def _weight_bytes(module: Any) -> int:
    """Return the bytes of parameters and stored buffers; weights that are tied count once."""
    tensors = {t.data_ptr(): t for t in (*module.parameters(), *module.state_dict().values())}
    return sum(tensor.nbytes for tensor in tensors.values())
