"""An answer that is being written, read by asyncio."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

import grpc

from pomona.failure import cancelled_by_hand, failure_of
from pomona.v1 import generation_pb2
from pomona.written import Event, Written, content_of

AsyncCall = grpc.aio.UnaryStreamCall[generation_pb2.StreamGenerateRequest, generation_pb2.StreamGenerateResponse]


class AsyncAnswer:
    """Iterating gives the text of the first sequence as it comes; `events` gives everything.

    Read it in one of these ways, once. Leaving an `async with` block early cancels the request: nothing is computed
    for nobody.

    Attributes:
        written: what has come so far.
    """

    def __init__(self, call: AsyncCall) -> None:
        self._call = call
        self.written = Written()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aiter__(self) -> AsyncGenerator[str]:
        """Yield text.

        Raises:
            PomonaError: the call failed.
        """
        async with aclosing(self.events()) as events:
            async for event in events:
                text = content_of(event)
                if text:
                    yield text

    async def events(self) -> AsyncGenerator[Event]:
        """Yield the messages of the contract's events; of an answer that is complete the last is `GenerationCompleted`.

        Raises:
            PomonaError: the call failed.
        """
        try:
            async for response in self._call:
                event = self.written.take(response)
                if event is not None:
                    yield event
        except grpc.RpcError as error:
            raise failure_of(error) from error
        except asyncio.CancelledError:
            failure = cancelled_by_hand()
            if failure is not None:
                raise failure from None
            raise
        finally:
            self.cancel()

    async def result(self) -> Written:
        """Wait for the end, and return the whole.

        Raises:
            PomonaError: the call failed.
        """
        async for _ in self.events():
            pass
        return self.written

    def cancel(self) -> None:
        """End the request; of one that is complete nothing changes. Who reads it meets a `PomonaError`."""
        self._call.cancel()
