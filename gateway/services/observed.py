"""Has an observer told of the ends of the gateway's own RPCs, as it is told of those that are passed on to workers."""

from __future__ import annotations

from typing import Any

import grpc

from gateway.ending import UNOBSERVED, Ending, Observer


def observed(
    handler: grpc.RpcMethodHandler[Any, Any], method: str, observer: Observer
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return `handler`, of requests that come alone, with its ends told to `observer`.

    Args:
        handler: answers by coroutines that take the request and gRPC's context.
        method: full name, with its slashes.
        observer: is told once a call.
    """
    if observer is UNOBSERVED:
        return handler
    plain: Any = handler
    behaviour: Any = plain.unary_stream if plain.response_streaming else plain.unary_unary

    async def answer(request: Any, context: Any) -> Any:
        ending = Ending(method)
        try:
            response = await behaviour(request, context)
            ending.ended(grpc.StatusCode.OK)
        except Exception:
            ending.ended(_code(context), context.trailing_metadata() or ())
            raise
        finally:
            ending.tell(observer, "", "", 0)
        return response

    if plain.response_streaming:
        return grpc.unary_stream_rpc_method_handler(answer, plain.request_deserializer, plain.response_serializer)
    return grpc.unary_unary_rpc_method_handler(answer, plain.request_deserializer, plain.response_serializer)


def _code(context: Any) -> grpc.StatusCode:
    """Return the status that was set; the library has a number for it where it was not set by us."""
    code = context.code()
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN
