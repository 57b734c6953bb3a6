from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.ask import Ask
from agent.allocate.inforce import in_force
from agent.allocate.ledger import Ledger
from agent.allocate.node import NodeFacts
from agent.allocate.offer import Offer
from agent.allocate.reasons import Rejection
from agent.allocate.trials import Trials
from tests.allocate.test_ledger_sums import nodes, owners, sharers


@given(nodes(), st.lists(owners | sharers, max_size=5), owners | sharers)
def test_what_is_said_to_do_is_found_and_what_lacks_is_not(
    node: NodeFacts, before: list[Ask], last: Ask
) -> None:
    """Whether NUMA nodes do is known without a search for CPUs, on machines whose cores differ in
    threads too."""
    ledger = Ledger(node)
    for number, ask in enumerate(before):
        got = ledger.offer(msgspec.structs.replace(ask, uid=f"p{number}"))
        if isinstance(got, Offer):
            ledger.commit(got)
    policies = in_force(node, last)
    if isinstance(policies, Rejection):
        return
    trials = Trials(node, ledger.account, last, policies)
    ids = sorted(node.zones)
    for some in ([*ids], *([each] for each in ids), ids[1:], ids[::2]):
        found = trials.on_nodes(some)
        assert trials.lacks(some) == (found if isinstance(found, Rejection) else None)
