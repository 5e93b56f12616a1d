"""Records as the `record` of a test would have them written."""

from __future__ import annotations

from collections.abc import Collection

from flashnest.policy.facts import FACTS, RecordFacts, time_words


def record_text(record: RecordFacts, named: Collection[str] = tuple(FACTS)) -> str:
    """Return a record as a test would write it; `named` are the facts to show, `tokens` is always one."""
    words = {
        "tokens": str(record.tokens),
        "kind": record.kind.name.lower(),
        "namespace": record.namespace,
        "bytes": str(record.nbytes),
        "hits": _hits(record),
        "idle": time_words(record.idle_s),
        "age": time_words(record.age_s),
        "refs": str(record.refs),
        "accept": f"{record.accept_percent}%",
    }
    shown = {name: text for name, text in words.items() if name == "tokens" or name in named}
    return f"{{{', '.join(f'{name}: {text}' for name, text in shown.items())}}}"


def _hits(record: RecordFacts) -> str:
    windows = [f"{time_words(window_s)}: {hits}" for window_s, hits in record.window_hits]
    return f"{{{', '.join((f'total: {record.hits}', *windows))}}}" if windows else str(record.hits)
