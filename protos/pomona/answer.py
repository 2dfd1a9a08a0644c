"""An answer that is being written."""

from collections.abc import Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import Protocol, Self

import grpc

from pomona.failure import failure_of
from pomona.v1 import generation_pb2
from pomona.written import Event, Written, content_of


class Call(Protocol):
    """The part of a gRPC call that is used here."""

    def __iter__(self) -> Iterator[generation_pb2.StreamGenerateResponse]:
        """Yield what the server sends."""
        ...

    def cancel(self) -> object:
        """End the call."""
        ...


class Answer:
    """Iterating gives the text of the first sequence as it comes; `events` gives everything.

    Read it in one of these ways, once. Leaving a `with` block, or a loop, early cancels the request: nothing is
    computed for nobody.

    Attributes:
        written: what has come so far.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self.written = Written()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __iter__(self) -> Generator[str]:
        """Yield text.

        Raises:
            PomonaError: the call failed.
        """
        with closing(self.events()) as events:
            yield from filter(None, map(content_of, events))

    def events(self) -> Generator[Event]:
        """Yield the messages of the contract's events; of an answer that is complete the last is `GenerationCompleted`.

        Raises:
            PomonaError: the call failed.
        """
        try:
            for response in self._call:
                event = self.written.take(response)
                if event is not None:
                    yield event
        except grpc.RpcError as error:
            raise failure_of(error) from error
        finally:
            self.cancel()

    def result(self) -> Written:
        """Wait for the end, and return the whole.

        Raises:
            PomonaError: the call failed.
        """
        for _ in self.events():
            pass
        return self.written

    def cancel(self) -> None:
        """End the request; of one that is complete nothing changes. Another thread may call this."""
        self._call.cancel()
