"""Samples turned into columns, and columns packed small: the format of the store's blocks.

Neighbours in a column differ little. So the first bytes of all numbers are laid side by side, then the
second, and so on: the compressor finds long runs.
"""

from __future__ import annotations

import json
import math
import zlib
from array import array
from collections.abc import Mapping, Sequence

#: The slot of a sample, the numbers of its series, their values.
Tick = tuple[int, "array[int]", "array[float]"]
#: A column per series, by the series' number.
Columns = dict[int, "array[float]"]


def transposed(
    ticks: Sequence[Tick], wanted: Mapping[int, object] | None = None
) -> tuple[list[int], Columns]:
    """Samples into columns, one per series; a series that a sample lacks gets "not a number" there.

    Samples of the same layout are laid end to end and cut with a stride, which is fast.
    """
    slots = [slot for slot, _, _ in ticks]
    columns: Columns = {}
    begin = 0
    while begin < len(ticks):
        ids = ticks[begin][1]
        end = begin
        joined = array("d")
        while end < len(ticks) and ticks[end][1] is ids:
            joined += ticks[end][2]
            end += 1
        for place, number in enumerate(ids):
            if wanted is not None and number not in wanted:
                continue
            column = columns.get(number)
            if column is None:
                column = columns[number] = array("d", [math.nan]) * len(ticks)
            column[begin:end] = joined[place :: len(ids)]
        begin = end
    return slots, columns


def packed(
    start: int, slots: Sequence[int], numbers: Sequence[int], columns: Columns, *, exact: bool
) -> bytes:
    """The columns of these series. Seven digits are kept of each number, or all if it must be exact."""
    code = "d" if exact else "f"
    values: array[float] = array(code)
    for number in numbers:
        values.extend(array(code, columns[number]))
    raw = values.tobytes()
    body = b"".join(raw[place :: values.itemsize] for place in range(values.itemsize))
    offsets = array("H", [slot - start for slot in slots])
    head = json.dumps({"code": code, "start": start, "slots": len(slots), "series": len(numbers)}).encode()
    return zlib.compress(b"\n".join((head, offsets.tobytes() + array("I", numbers).tobytes() + body)), 6)


def unpacked(body: bytes, wanted: Mapping[int, object]) -> tuple[list[int], Columns]:
    """The slots of a block, and the columns of those series that are wanted."""
    head, _, rest = zlib.decompress(body).partition(b"\n")
    told = json.loads(head)
    count, length = told["series"], told["slots"]
    ids_at, values_at = 2 * length, 2 * length + 4 * count
    slots = [told["start"] + offset for offset in array("H", rest[:ids_at])]
    numbers = array("I", rest[ids_at:values_at])
    planes = rest[values_at:]
    size = array(told["code"]).itemsize
    plane = count * length
    columns: Columns = {}
    for place, number in enumerate(numbers):
        if number in wanted:
            raw = bytearray(length * size)
            for byte in range(size):
                begin = byte * plane + place * length
                raw[byte::size] = planes[begin : begin + length]
            columns[number] = array(told["code"], bytes(raw))
    return slots, columns
