"""arctic-inference's suffix tree in the replay, as vLLM 0.32 drives it. Runs in the Python that has it; prints JSON.

/path/to/vllm/bin/python -m benchmarks.suffix_replay STREAMS.npz --draft-tokens 8 --rows 8 --passes 2
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.draft_replay import Tokens, read_streams, replay

TREE_DEPTH = 24
MAX_REQUESTS = 10000
LEAST_CHANCE = 0.1
"""vLLM 0.32's defaults; it limits a draft to the tokens matched."""


class SuffixTree:
    """`SuffixDecodingCache` behind the replay's protocol."""

    def __init__(self, rows: int, width: int, depth: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache  # type: ignore[import-not-found]

        self._width, self._depth = width, depth
        self._cache: Any = SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=MAX_REQUESTS)
        self._ids, self._next_id = [0] * rows, 0
        self._texts: list[Tokens] = [np.zeros(0, np.int32)] * rows

    def start(self, row: int, prompt: Tokens) -> None:
        """See `Replayed`."""
        self._ids[row], self._texts[row] = self._next_id, prompt
        self._next_id += 1
        self._cache.start_request(self._ids[row], prompt)

    def propose(self, rows: Sequence[int]) -> list[Tokens]:
        """See `Replayed`."""
        drafts = []
        for row in rows:
            found = self._cache.speculate(
                self._ids[row],
                self._texts[row][-self._depth :],
                max_spec_tokens=self._width,
                max_spec_factor=1.0,
                min_token_prob=LEAST_CHANCE,
            )
            drafts.append(np.array(found.token_ids, np.int32))
        return drafts

    def take(self, rows: Sequence[int], said: Sequence[Tokens], ended: Sequence[bool]) -> None:
        """See `Replayed`."""
        for row, tokens, end in zip(rows, said, ended, strict=True):
            self._texts[row] = np.concatenate([self._texts[row], tokens])
            self._cache.add_active_response(self._ids[row], np.ascontiguousarray(tokens))
            if end:
                self._cache.stop_request(self._ids[row])

    def history_bytes(self) -> int:
        """Return what the tree of all answers says it takes."""
        return int(self._cache._global_tree.estimate_memory())


def main() -> None:
    """Replay one file of streams and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path)
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--depth", type=int, default=TREE_DEPTH, help="deepest match and draft together")
    args = parser.parse_args()
    drafter = SuffixTree(args.rows, args.draft_tokens, args.depth)
    print(json.dumps(replay(drafter, read_streams(args.streams), rows=args.rows, passes=args.passes)))


if __name__ == "__main__":
    main()
