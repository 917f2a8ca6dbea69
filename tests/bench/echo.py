"""The floor: a bare grpc.aio server that knows GraphService's messages and answers each call with one kept answer.

`python -m tests.bench.echo FILE` reads the answers, {method: base64 of the router's own answer}, from a JSON file, so
that its messages have exactly the router's size; prints its port, and serves until SIGTERM. Event loop, server options
and garbage collection are the router's; requests are parsed and answers serialised by the generated code.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message
from grpc import aio

from graphd.process import loop_factory
from graphd.v1 import graph_pb2
from router.server import _OPTIONS

SERVICE = graph_pb2.DESCRIPTOR.services_by_name["GraphService"]


def _handler(name: str, answer: bytes) -> grpc.RpcMethodHandler[Any, Any]:
    method = SERVICE.methods_by_name[name]
    request_type: type[Message] = message_factory.GetMessageClass(method.input_type)
    response_type: type[Message] = message_factory.GetMessageClass(method.output_type)
    response = response_type.FromString(answer)

    async def behavior(request: Message, context: aio.ServicerContext[Any, Any]) -> Message:
        return response

    return grpc.unary_unary_rpc_method_handler(
        behavior,
        request_deserializer=request_type.FromString,
        response_serializer=response_type.SerializeToString,
    )


async def serve(answers: dict[str, str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = aio.server(options=(*_OPTIONS, ("grpc.so_reuseport", 0)))
    handlers = {name: _handler(name, base64.b64decode(answer)) for name, answer in answers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    print(port, flush=True)
    await stop.wait()
    await server.stop(1.0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(json.loads(Path(sys.argv[1]).read_text())))
