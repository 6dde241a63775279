"""Reads a trace of `dlaunch --trace` by the schema of proto/cohort/v1/trace_file.proto, for tests in Python."""

import collections
import zlib

Slice = collections.namedtuple("Slice", "node track name arguments begin_ns end_ns")  # an instant has equal times


def fields(data):
    """(number, value) of a message's fields; a value is a number or bytes."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        wire = key & 7
        if wire == 0:
            yield key >> 3, number()
        elif wire == 1:
            yield key >> 3, int.from_bytes(data[at:at + 8], "little")
            at += 8
        elif wire == 2:
            length = number()
            if at + length > len(data):
                raise ValueError("a field goes beyond the end")
            yield key >> 3, data[at:at + length]
            at += length
        else:
            raise ValueError(f"wire type {wire} of field {key >> 3}")


def one(data, *wanted):
    """The last value of each wanted field; None where it is absent."""
    found = dict(fields(data))
    return tuple(found.get(field) for field in wanted)


class Trace:
    """slices: of calls, ranges and states, by their ends. instants: the others. Raises ValueError for what is no trace, and
    for slices that do not lie in each other."""

    def __init__(self, path):
        self.slices, self.instants = [], []
        self._names, self._keys, self._values, self._tracks = {}, {}, {}, {}
        events = []
        with open(path, "rb") as file:
            data = file.read()
        for _, packet in fields(data):
            for _, inside in fields(zlib.decompress(one(packet, 50)[0])):
                event = self._read(inside)
                if event is not None:
                    events.append(event)
        events.sort(key=lambda event: event[0])  # stable, as Perfetto sorts
        open_slices = collections.defaultdict(list)
        for time, kind, track, name, arguments in events:
            text, parent = self._tracks[track]
            node = self._tracks.get(parent, ("", 0))[0]
            if kind == 1:
                open_slices[track].append((name, arguments, time))
            elif kind == 2:
                if not open_slices[track]:
                    raise ValueError(f"an end without a beginning on {text}")
                begun, with_arguments, begin = open_slices[track].pop()
                self.slices.append(Slice(node, text, begun, with_arguments, begin, time))
            else:
                self.instants.append(Slice(node, text, name, arguments, time, time))
        if any(open_slices.values()):
            raise ValueError("a slice without an end")

    def _read(self, packet):
        time, event, interned, flags, track = one(packet, 8, 11, 12, 13, 60)
        if flags is not None and flags & 1:
            self._names, self._keys, self._values = {}, {}, {}
        for kind, table in ((2, self._names), (3, self._keys), (29, self._values)):
            for field, entry in fields(interned or b""):
                if field == kind:
                    number, text = one(entry, 1, 2)
                    table[number] = (text or b"").decode("utf-8", "replace")
        if track is not None:
            uuid, name, parent = one(track, 1, 2, 5)
            self._tracks[uuid] = ((name or b"").decode("utf-8", "replace"), parent or 0)
        if event is None:
            return None
        arguments = {}
        for field, argument in fields(event):
            if field == 4:
                key, unsigned, signed, number, text = one(argument, 1, 3, 4, 17, 6)
                value = self._values[number] if number is not None else unsigned if unsigned is not None else signed
                arguments[self._keys[key]] = value if text is None else text.decode("utf-8", "replace")
        kind, name, uuid = one(event, 9, 10, 11)
        return time, kind, uuid, self._names.get(name, ""), arguments
