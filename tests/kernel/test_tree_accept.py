"""Following the target's choices: against a walk over children by token."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kdnb.reference.tree_accept import accept
from kdnb.tree import DraftTree


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_equals_a_dictionary_walk(data):
    n = data.draw(st.integers(1, 30))
    parents, used = [-1], set()
    tokens = [data.draw(st.integers(0, 5))]
    for node in range(1, n):
        parent = data.draw(st.integers(0, node - 1))
        free = [t for t in range(6) if (parent, t) not in used]
        if not free:
            continue
        token = data.draw(st.sampled_from(free))
        used.add((parent, token))
        parents.append(min(parent, len(parents) - 1))
        tokens.append(token)
    try:
        tree = DraftTree.from_parents(tokens, parents)
    except ValueError:  # a clamped parent met its twin
        return
    choices = np.array(
        data.draw(st.lists(st.integers(0, 5), min_size=tree.num_nodes, max_size=tree.num_nodes))
    )
    children = {
        (int(p), int(t)): c for c, (p, t) in enumerate(zip(tree.parents, tree.token_ids, strict=True))
    }
    path = [0]
    while (path[-1], int(choices[path[-1]])) in children:
        path.append(children[path[-1], int(choices[path[-1]])])
    acceptance = accept(tree, choices)
    assert acceptance.accepted.tolist() == path
    assert acceptance.bonus_id == choices[path[-1]]
    assert acceptance.num_emitted == acceptance.num_accepted + 1 == len(path)
    assert acceptance.next_ids.dtype == np.int32
