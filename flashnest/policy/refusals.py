"""Whether the check would refuse a policy whose rules were changed after they were checked: a mutant is no new text."""

from __future__ import annotations

from collections.abc import Collection

from flashnest.policy.cells import make_cells
from flashnest.policy.check import Checked
from flashnest.policy.compile import Policy
from flashnest.policy.conflicts import check_conflicts
from flashnest.policy.coverage import check_coverage
from flashnest.policy.diagnostics import Severity


def refused(policy: Policy, opened: Collection[str] | None) -> bool:
    """Return whether rules leave a gap, never match, or moves conflict: an error, not something that a test finds."""
    checked = Checked(
        source=policy.document.source,
        rules=policy.rules,
        classes=(),
        moves=policy.moves,
        flush=policy.flush,
        requirements=policy.requirements,
        asked=(),
        params=policy.params,
        namespaces=policy.namespace_names,
        diagnostics=(),
    )
    if not policy.rules:
        return True
    found = [*check_coverage(checked, make_cells(policy.rules), opened), *check_conflicts(checked)]
    return any(one.severity is Severity.ERROR for one in found)
