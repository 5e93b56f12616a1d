"""Hypothesis strategies for policy texts and records whose facts lie on and beside the policies' constants."""

from __future__ import annotations

from hypothesis import strategies as st

from flashnest.policy.facts import RecordFacts
from flashnest.record import Kind

NAMESPACES = ("acme", "globex", "default")
OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "\u2264", "\u2265", "\u2260")
CHAINS = ("dram", "nvme", "DRAM else NVMe", "vram else dram", "reject", "nvme else reject")
PARAMS = (
    "param long = 32 tokens\nparam block = 4KiB\nparam tenant = 'acme'\n"
    "class lengthy = tokens >= long or kind = chunk and bytes > block\n"
)

tokens = st.sampled_from((1, 2, 8, 9, 31, 32, 254, 255))
sizes = st.sampled_from((1, 104, 4095, 4096, 4097, 2**32 - 1))
written_tokens = tokens.map(str) | tokens.map("{} tokens".format) | st.just("long")
written_sizes = sizes.map(str) | st.just("4KiB") | st.just("block")
written_names = st.sampled_from([f'"{name}"' for name in NAMESPACES]) | st.just("tenant")


def _range(bounds: tuple[int, int]) -> str:
    return f"{min(bounds)}..{max(bounds)}"


atoms = st.one_of(
    st.builds("tokens {} {}".format, st.sampled_from(OPERATORS), written_tokens),
    st.builds("{}{}-token records".format, st.sampled_from(OPERATORS), tokens),
    st.tuples(tokens, tokens).map(_range).map("tokens in {}".format),
    st.tuples(sizes, sizes).map(_range).map("bytes in {}".format),
    st.builds("bytes {} {}".format, st.sampled_from(OPERATORS), written_sizes),
    st.builds("kind {} {}".format, st.sampled_from(("=", "!=")), st.sampled_from(("ngram", "chunk"))),
    st.builds("namespace {} {}".format, st.sampled_from(("=", "!=")), written_names),
    st.just("lengthy"),
)
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("{} and {}".format, inner, inner),
        st.builds("{} or {}".format, inner, inner),
        inner.map("({})".format),
        inner.map("not ({})".format),
    ),
    max_leaves=5,
)
LEVELS = ("", "", "", " enforce", " warn")
starts = st.sampled_from(("place ", "", 'place "{}": '))
"""How rules start; the label is the number of the rule, for no two may have the same one."""

rules = st.builds(
    "{}{} {} {}{}".format, starts, conditions, st.just("in"), st.sampled_from(CHAINS), st.sampled_from(LEVELS)
)


def numbered(lines: list[str]) -> str:
    """Join rules with their numbers in their labels."""
    return "\n".join(line.format(i) for i, line in enumerate(lines))


policies = st.lists(rules, min_size=1, max_size=5).map(lambda lines: PARAMS + numbered(lines))
records = st.builds(RecordFacts, tokens, st.sampled_from(Kind), st.sampled_from((*NAMESPACES, "other")), sizes)
