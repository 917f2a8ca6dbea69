"""The typed asyncio client: one `Client` a process and event loop, shared by everything that runs in it.

    async with Client("127.0.0.1:7600") as client:
        await client.follow(ada, bo)
        async for edge in client.followers(bo):
            ...

Every call has a deadline. Calls that failed for a passing reason are repeated within it: reads change nothing, and each write carries
a request id by which a repetition is recognised. How much is repeated is bounded (calls.py), so that no outage is made worse. What
fails for good is raised as a class of graphd.errors, or of failures.py for what no router answered.
"""

from graphd.client.admin import AdminClient
from graphd.client.calls import RetryBudget
from graphd.client.client import Client
from graphd.client.failures import RouterUnavailableError, UnexpectedStatusError
from graphd.client.listing import Listing
from graphd.client.values import (
    AllOf,
    AnyOf,
    Change,
    Chunk,
    Degrees,
    Edge,
    EdgeKey,
    Expression,
    FollowersOf,
    FollowingOf,
    KindInfo,
    ListOrder,
    Neighbor,
    Operand,
    Page,
    Progress,
    SetOrder,
    ShardInfo,
    SlotInfo,
    Suggestions,
    TopologyInfo,
    Without,
    Write,
    WriteResult,
)

__all__ = [
    "AdminClient",
    "AllOf",
    "AnyOf",
    "Change",
    "Chunk",
    "Client",
    "Degrees",
    "Edge",
    "EdgeKey",
    "Expression",
    "FollowersOf",
    "FollowingOf",
    "KindInfo",
    "ListOrder",
    "Listing",
    "Neighbor",
    "Operand",
    "Page",
    "Progress",
    "RetryBudget",
    "RouterUnavailableError",
    "SetOrder",
    "ShardInfo",
    "SlotInfo",
    "Suggestions",
    "TopologyInfo",
    "UnexpectedStatusError",
    "Without",
    "Write",
    "WriteResult",
]
