"""When a request is over: EOS ids, stop strings and the token limit, looked for token by token.

The engine pushes the tokens that a verifying pass committed, a whole accepted draft at a time; what follows the end
inside the draft is cut. Decides nothing about KV or learning, and knows no tokenizer: it is handed one function.

What stays in the output, as in vLLM's text: an EOS token is not part of it; a stop string is not part of it, wherever
in a token it starts or ends. Tokens cannot be split, so where a stop string starts inside a token the text keeps the
head of that token and the token ids do not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashnest.runtime.request import Finish, SamplingParams

Detokenise = Callable[[list[int]], str]
"""Token ids to text. Incomplete UTF-8 at the end comes out as U+FFFD, as tokenizers do."""

_INCOMPLETE = "\ufffd"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended. `output_tokens` counts from the request's first output token, earlier pushes included."""

    finish: Finish
    output_tokens: int
    text: str | None
    """The exact text up to the stop string; None where no stop string ended the request."""


class StopScanner:
    """Scans one request's output. Push tokens in order; after an `Ending` push no more."""

    def __init__(self, sampling: SamplingParams, eos_ids: Sequence[int], detokenise: Detokenise | None = None) -> None:
        """Raises ValueError where there are stop strings but no way to turn tokens into text, or an empty one."""
        if sampling.stop and detokenise is None:
            raise ValueError("stop strings need a tokenizer, and this request has none")
        if not all(sampling.stop):
            raise ValueError("a stop string must not be empty")
        self._eos = frozenset() if sampling.ignore_eos else frozenset(eos_ids)
        self._max_tokens = sampling.max_tokens
        self._count = 0
        self._text = _TextTail(sampling.stop, detokenise) if detokenise is not None and sampling.stop else None

    def push(self, tokens: list[int]) -> Ending | None:
        """Take committed tokens; returns how the request ends within them, or None to go on."""
        for token in tokens[: self._max_tokens - self._count]:
            if token in self._eos:
                return Ending(Finish.EOS, self._count, None)
            self._count += 1
            if self._text is not None and (cut := self._text.push(token)) is not None:
                return Ending(Finish.STOP, *cut)
        return Ending(Finish.LENGTH, self._count, None) if self._count >= self._max_tokens else None


class _TextTail:
    """The text of an output, grown a token at a time, and where each token's text ends in it.

    Only the tokens since the last complete character are decoded again, with a few before them as context, because a
    tokenizer may write a token differently at the start of a text. So a token costs O(1), not O(output).
    """

    def __init__(self, stops: tuple[str, ...], detokenise: Detokenise) -> None:
        self._stops = stops
        self._longest = max(map(len, stops))
        self._detokenise = detokenise
        self._tokens: list[int] = []
        self._ends: list[int] = []
        self._text = ""
        self._context = 0
        """First token that is decoded as context."""
        self._complete = 0
        """Tokens whose text is in `_text`."""

    def push(self, token: int) -> tuple[int, str] | None:
        """Take one token; returns (whole tokens before the stop string, text before it) once there is one."""
        self._tokens.append(token)
        known = self._detokenise(self._tokens[self._context : self._complete])
        grown = self._detokenise(self._tokens[self._context :])
        self._ends.append(len(self._text))
        if grown.endswith(_INCOMPLETE) or len(grown) <= len(known):
            return None
        searched_from = max(0, len(self._text) - self._longest + 1)
        self._text += grown[len(known) :]
        self._ends[self._complete :] = [len(self._text)] * (len(self._tokens) - self._complete)
        self._context, self._complete = self._complete, len(self._tokens)
        return self._cut(searched_from)

    def _cut(self, searched_from: int) -> tuple[int, str] | None:
        starts = [at for stop in self._stops if (at := self._text.find(stop, searched_from)) >= 0]
        if not starts:
            return None
        at = min(starts)
        return bisect_right(self._ends, at), self._text[:at]
