"""Which calls are company for those that wait for a shard."""

from __future__ import annotations

import pytest

from router.admission import Admission


def test_a_call_that_stands_aside_is_no_company() -> None:
    admission = Admission(10)
    admission.begin()
    for _ in range(100):
        admission.begin()
        with admission.aside():
            assert admission.in_flight == 1
        assert admission.in_flight == 2
        admission.end()
    assert admission.in_flight == 1
    with pytest.raises(KeyError), admission.aside():
        raise KeyError
    assert admission.in_flight == 1
