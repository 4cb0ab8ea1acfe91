"""A control port answers peers that know its token, and closes the connections of others."""

import asyncio
import json
import logging
from typing import Any

import pytest

from shoal.net import control_port
from shoal.net.control_port import (
    LINE_LIMIT_BYTES,
    ControlError,
    ControlPort,
    request_answer,
)

TOKEN = "sécret"  # noqa: S105


async def echo(request: dict[str, Any]) -> dict[str, Any]:
    if request.get("command") == "break":
        raise ControlError("a request has no flow")
    await asyncio.sleep(request.get("takes_s", 0))
    return {"said": request["command"]}


async def exchange(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def line(**request: Any) -> bytes:
    return json.dumps({"token": TOKEN, **request}).encode() + b"\n"


async def test_each_request_gets_one_line() -> None:
    control = ControlPort(echo, token=TOKEN)
    port = await control.start()
    answer = await exchange(port, line(command="one") + line(command="two"))
    assert answer == b'{"said": "one"}\n{"said": "two"}\n'
    request = {"token": TOKEN, "command": "three"}
    said = await asyncio.to_thread(request_answer, port, request, timeout_s=60)
    assert said == {"said": "three"}
    await control.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(request_answer, port, request, timeout_s=60)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"{}\n", "wrong token"),
        (b'{"token": "secret", "command": "x"}\n', "wrong token"),
        (b'{"token": null, "command": "x"}\n', "wrong token"),
        (b"[]\n", "not a JSON object"),
        (b"\xff\n", "not JSON"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b"x" * (LINE_LIMIT_BYTES + 2), f"longer than {LINE_LIMIT_BYTES} bytes"),
        (line(command="break"), "a request has no flow"),
    ],
    ids=str,
)
async def test_a_peer_that_breaks_a_rule_gets_no_answer(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    control = ControlPort(echo, token=TOKEN)
    port = await control.start()
    assert await exchange(port, sent + line(command="one")) == b""
    assert reason in caplog.text
    assert TOKEN not in caplog.text
    with pytest.raises(ControlError, match="ended before the answer"):
        await asyncio.to_thread(request_answer, port, {"command": "one"}, timeout_s=60)
    await control.close()


@pytest.mark.parametrize("sent", [b"", line(command="one")[:-1]], ids=["nothing", "half a line"])
async def test_a_peer_without_a_request_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_port, "IDLE_LIMIT_S", 0.1)
    control = ControlPort(echo, token=TOKEN)
    port = await control.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    # The limit is not one of answers.
    answer = await exchange(port, line(command="two", takes_s=0.3))
    assert answer == b'{"said": "two"}\n'
    await control.close()


async def test_open_connections_end_with_the_port_but_requests_are_answered() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["command"] == "long":
            begun.set()
            await may_end.wait()
        return {"said": request["command"]}

    control = ControlPort(answer, token=TOKEN)
    port = await control.start()
    idle, busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    idle[1].write(line(command="one"))
    assert await idle[0].readline() == b'{"said": "one"}\n'
    busy[1].write(line(command="long"))
    await begun.wait()
    closing = asyncio.ensure_future(control.close())
    assert await asyncio.wait_for(idle[0].read(), 60) == b""
    may_end.set()
    assert await asyncio.wait_for(busy[0].read(), 60) == b'{"said": "long"}\n'
    await closing
    for _, writer in (idle, busy):
        writer.close()


async def test_a_peer_that_waits_too_long_is_closed() -> None:
    control = ControlPort(echo, token=TOKEN, timeout_s=0.1)
    port = await control.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()
    assert await exchange(port, line(command="one", takes_s=60)) == b""
    assert await exchange(port, line(command="two")) == b'{"said": "two"}\n'
    await control.close()
