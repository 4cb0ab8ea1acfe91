"""A control port answers peers that know its token, and closes the connections of others."""

import asyncio
import json
import logging
from typing import Any

import pytest

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
    said = await asyncio.to_thread(request_answer, port, request, timeout_s=10)
    assert said == {"said": "three"}
    await control.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(request_answer, port, request, timeout_s=10)


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
        await asyncio.to_thread(request_answer, port, {"command": "one"}, timeout_s=10)
    await control.close()


async def test_a_peer_that_waits_too_long_is_closed() -> None:
    control = ControlPort(echo, token=TOKEN, timeout_s=0.1)
    port = await control.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()
    assert await exchange(port, line(command="one", takes_s=60)) == b""
    assert await exchange(port, line(command="two")) == b'{"said": "two"}\n'
    await control.close()
