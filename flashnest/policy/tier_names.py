"""Words of a policy to tiers, as far as they are open (T402, T405)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flashnest.policy.diagnostics import unknown
from flashnest.policy.facts import REJECT, TIERS
from flashnest.policy.syntax import Name, Source
from flashnest.policy.values import rejected
from flashnest.record import Tier


@dataclass(frozen=True, slots=True)
class TierNames:
    """`opened` is the tiers that exist, in lower case (None: all)."""

    source: Source
    opened: Collection[str] | None

    def tier(self, name: Name) -> Tier:
        """Return a tier by its name, in any case. Raises Rejected."""
        word = name.text.lower()
        if word == REJECT:
            raise rejected(self.source, "T402", name.span, "`reject` is no tier", "a record that leaves is evicted")
        if word not in TIERS:
            raise rejected(self.source, "T402", name.span, *unknown(name.text, "tier", tuple(TIERS)))
        if self.opened is not None and word not in self.opened:
            listed = ", ".join(f"`{tier}`" for tier in self.opened) or "none"
            message = f"tier `{word}` is not opened here"
            raise rejected(self.source, "T405", name.span, message, f"add `{word}:` under `tiers:`; open: {listed}")
        return TIERS[word]

    def chain(self, names: tuple[Name, ...]) -> tuple[Tier, ...]:
        """Return the tiers of a chain, `()` for reject. Raises Rejected."""
        chain: list[Tier] = []
        for position, name in enumerate(names):
            if name.text.lower() == REJECT:
                if position < len(names) - 1:
                    message = "`reject` ends a chain: no tier can come after it"
                    raise rejected(self.source, "T406", names[position + 1].span, message)
                break
            tier = self.tier(name)
            if tier in chain:
                message = f"`{name.text.lower()}` is in the chain twice"
                raise rejected(self.source, "T406", name.span, message)
            chain.append(tier)
        return tuple(chain)
