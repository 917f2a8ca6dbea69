"""Who wins: the only Python home of the rule.

A version is a tuple (position, state, since), and the merge of two versions is the greater one, taken whole. Maximum over a total
order is commutative, associative and idempotent, so versions may be lost and sent again, doubled and reordered, and every copy that
has seen the same set of them holds the same one. In a tie of positions the higher state wins, and states are numbered so that the
one which shows less is higher. SQL says the same once, as a row comparison in storage/queries/write.sql; a contract test holds the
two together.
"""

from __future__ import annotations

from graphd.edge import Version


def merge(a: Version | None, b: Version | None) -> Version | None:
    """The version that stands when both are known. None is "no row", which anything beats."""
    if a is None:
        return b
    if b is None:
        return a
    return max(a, b)
