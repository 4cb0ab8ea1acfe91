"""Records as columns, made by hand from plain bytes: what a reader of messages is given."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.workload.envelope import Headers, header_section


class HandMadeColumns:
    """Key, value and header section of each record, one after the other in one array."""

    def __init__(self, records: Sequence[tuple[bytes | None, bytes | None, Headers]]) -> None:
        data = bytearray()
        spans: list[list[int]] = []
        for key, value, headers in records:
            row: list[int] = []
            for part in (key, value, header_section(headers)):
                row += [len(data), -1 if part is None else len(part)]
                data += part or b""
            spans.append(row)
        columns: Any = np.array(spans, np.int64).reshape(-1, 6).T
        self.data = np.frombuffer(bytes(data) or b"\0", np.uint8)
        self.key_start, self.key_length = columns[0], columns[1]
        self.value_start, self.value_length = columns[2], columns[3]
        self.header_start, self.header_length = columns[4], columns[5]
