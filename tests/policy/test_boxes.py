"""Regions of a policy as boxes: nothing lost, nothing twice, nothing too much."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from flashnest.policy.boxes import boxes, describe, witness
from flashnest.policy.cells import make_cells
from flashnest.policy.compile import compile_policy
from flashnest.record import namespace_id

masks = arrays(np.bool_, array_shapes(min_dims=4, max_dims=4, max_side=4), elements=st.booleans())


@given(masks)
def test_boxes_cover_the_mask_once(mask):
    covered = np.zeros(mask.shape, np.int64)
    for box in boxes(mask):
        covered[np.ix_(*box.groups)] += 1

    assert (covered == mask).all()


@given(masks)
def test_first_box_cannot_grow(mask):
    for box in boxes(mask):
        for axis in range(4):
            for more in set(range(mask.shape[axis])) - set(box.groups[axis]):
                wider = [*box.groups]
                wider[axis] = (*box.groups[axis], more)
                assert not mask[np.ix_(*wider)].all()
        break


def test_each_fact_has_its_own_words():
    policy = compile_policy(
        "place tokens in 9..31 and kind = chunk and namespace = 'acme' and bytes <= 256 in dram\n"
        "place namespace != 'globex' in dram, otherwise in nvme"
    )
    cells = make_cells(policy.rules)
    spaces = {namespace_id(name): name for name in ("acme", "globex")}
    of_rule = [list(boxes(cells.mask(rule.meaning))) for rule in policy.rules]

    assert [describe(box, cells, spaces) for box in of_rule[0]] == [
        'tokens = 9..31, kind = chunk, namespace = "acme", bytes = 1..256'
    ]
    assert [witness(box, cells, spaces) for box in of_rule[0]] == [
        "{tokens: 9, kind: chunk, namespace: acme, bytes: 1}"
    ]
    assert [describe(box, cells, spaces) for box in of_rule[1]] == ['namespace other than "globex"']
    assert [describe(box, cells, spaces) for box in of_rule[2]] == [""]
