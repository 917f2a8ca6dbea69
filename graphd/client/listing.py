"""Paging as async iteration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from graphd.client.values import Page

T = TypeVar("T")


class Listing(Generic[T]):
    """A list on the server, read page by page as it is walked: `async for item in listing`.

    It is live, not a snapshot: an edge that does not change meanwhile is seen exactly once. Nothing is asked before the first
    item or page is. Each page is a call with a deadline of its own.
    """

    def __init__(self, fetch: Callable[[str, int], Awaitable[Page[T]]], page_size: int) -> None:
        self._fetch, self._page_size = fetch, page_size

    async def page(self, page_token: str = "", *, page_size: int | None = None) -> Page[T]:
        """One page: the first, or the one that a token of an earlier page leads to, forward or back."""
        return await self._fetch(page_token, self._page_size if page_size is None else page_size)

    async def pages(self, page_token: str = "") -> AsyncIterator[Page[T]]:
        """This page and all that follow. A `partial` page may hold no items and still be followed by others."""
        while True:
            page = await self.page(page_token)
            yield page
            page_token = page.next_page_token
            if not page_token:
                return

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.items:
                yield item
