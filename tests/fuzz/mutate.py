"""Damaged inputs: bytes, text, JSON, protobuf messages, zip archives and .npy headers changed at random, from a seeded source.

Each function takes a source of random numbers and a sound input, and returns another one. Changes that know the form of a
file (`json_text`, `message`, `archive`, `npy`, `png`) get past the first checks; changes of bytes and text test those.
"""

from __future__ import annotations

import io
import json
import struct
import warnings
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

NUMBERS = (
    *("0", "-0", "1", "-1", "2", "255", "256", "-129", "65536", "2147483647", "-2147483648", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551616"),
    *("0.5", "-0.0", "1e-45", "1e-320", "3.5e38", "1e308", "1e309", "-1e309", "NaN", "Infinity", "-Infinity", "inf", "nan"),
    *("1" * 400, "9" * 5000, "1e-999", "0x7fffffff", "1_000", "٣", "+1", ".5", "5.", "1e", "--1"),
)  # fmt: skip
TEXTS = (
    *("", " ", "\n", "\r", "\t", "\0", "\x1b[31m", "\x1b]0;title\a", "\u202e", "\u2028", "\ufeff", "\ud800", "é" * 50),
    *("../../../etc/passwd", "/etc/passwd", "/dev/zero", "..", ".", "a/b", "a\\b", "C:\\x", "~", "%s%n", "{}", "{0}"),
    *("<script>alert(1)</script>", "</script>", "]]>", "&amp;", "'\"", "`", "|", "#", "*", "a" * 300, "x" * 70000),
    *("true", "null", "none", "~", "yes", "__proto__", "input", "x", "W", ":", ",", "[]", "{}", "header", "N", "?"),
)  # fmt: skip
WORDS = (
    *(struct.pack("<i", each) for each in (0, 1, -1, 2, 127, 128, 255, 256, 2**15, 2**31 - 1, -(2**31))),
    *(struct.pack(">i", each) for each in (1, 255, 2**31 - 1, -(2**31), 65536)),
    *(struct.pack("<q", each) for each in (2**63 - 1, -(2**63), 2**40, 2**32)),
    *(b"\x00", b"\xff", b"\x80", b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\x0a", b"\x1a\x00"),
)  # fmt: skip


def octets(rng: Random, data: bytes, other: bytes = b"") -> bytes:
    """Change a few bytes: flip, overwrite, take out, repeat, put in, cut off, or go on with another input."""
    result = bytearray(data)
    for _ in range(_count(rng)):
        # the head of a file decides most
        at = rng.randrange(len(result) + 1) if rng.random() < 0.7 else rng.randrange(min(len(result), 64) + 1)
        size = min(len(result) - at, rng.choice((1, 1, 2, 4, 8, rng.randrange(1, 200))))
        match rng.randrange(8):
            case 0 if at < len(result):
                result[at] ^= 1 << rng.randrange(8)
            case 1:
                word = rng.choice(WORDS)
                result[at : at + len(word)] = word
            case 2:
                del result[at : at + size]
            case 3:
                result[at:at] = result[at : at + size] * rng.choice((1, 1, 2, 50))
            case 4:
                result[at:at] = rng.choice(WORDS)
            case 5:
                del result[at:]
            case 6:
                result[at : at + size] = rng.randbytes(size)
            case _:
                result[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(result)


def text(rng: Random, data: bytes, words: tuple[str, ...] = ()) -> bytes:
    """Change numbers, words and lines of a text."""
    content = data.decode("utf-8", "surrogateescape")
    for _ in range(_count(rng)):
        known = (*NUMBERS, *TEXTS, *words, *words)
        lines = content.split("\n")
        line = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                lines[line : line + 1] = [lines[line]] * rng.choice((0, 2, 2, 3))
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[line])
            case 2:
                lines[line] = _with_part(rng, lines[line], rng.choice(known))
            case 3:
                lines[line] = _with_part(rng, lines[line], "")
            case 4:
                lines[line] = rng.choice(("  ", "\t", " ", "- ")) + lines[line]
            case 5:
                lines.insert(line, rng.choice(known))
            case _:
                lines[line] = lines[line][: rng.randrange(len(lines[line]) + 1)]
        content = "\n".join(lines)
    return content.encode("utf-8", "surrogatepass")


def _with_part(rng: Random, line: str, part: str) -> str:
    """Put a text in the place of one that lies between separators."""
    cuts = [0, *(at for at, char in enumerate(line) if char in ' ,:"=[](){}'), len(line)]
    start = rng.randrange(len(cuts))
    end = min(len(cuts) - 1, start + rng.choice((0, 1, 1, 1, 2)))
    return line[: cuts[start] + (start > 0)] + part + line[cuts[end] :]


def json_value(rng: Random) -> Any:
    """Return any JSON value, numbers beyond reason among them."""
    match rng.randrange(10):
        case 0 | 1 | 2:
            chosen = rng.choice(NUMBERS)
            try:
                return int(chosen[:400])
            except ValueError:
                try:
                    return float(chosen)
                except ValueError:
                    return chosen
        case 3 | 4:
            return rng.choice(TEXTS)
        case 5:
            return rng.choice((None, True, False))
        case 6:
            return rng.choice(([], {}, [[]], {"": {}}, [None], [0, 1], ["a"], {"a": 1}))
        case 7:
            return [json_value(rng) for _ in range(rng.randrange(4))]
        case 8:
            return {rng.choice(TEXTS): json_value(rng) for _ in range(rng.randrange(3))}
        case _:
            return rng.choice((0, 1, -1, 0.5, 3, 2**31, 1e-30))


def json_document(rng: Random, document: Any) -> Any:
    """Change some places of a document, at any depth; it is changed in place, and returned."""
    for _ in range(_count(rng)):
        places = list(_places(document))
        if not places:
            return json_value(rng)
        holder, key = rng.choice(places)
        match rng.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice((rng.choice(TEXTS), f"{key}x", str(key)[:-1]))] = holder.pop(key)
            case 2:
                other, name = rng.choice(places)
                holder[key] = json.loads(json.dumps(other[name])) if name in _keys(other) else None
            case 3:
                holder[key] = [holder[key]]
            case 4 if isinstance(holder, dict):
                holder[rng.choice(TEXTS)] = json_value(rng)
            case 5 if isinstance(holder, list):
                holder.append(json_value(rng))
            case _:
                holder[key] = json_value(rng)
    return document


def _places(document: Any) -> Any:
    left = [document]
    while left:
        each = left.pop()
        for key in _keys(each):
            yield each, key
            left.append(each[key])


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []


def json_text(rng: Random, data: bytes) -> bytes:
    """Change a JSON file as a document, as text, or nest it deeper than any reader follows."""
    chance = rng.random()
    if chance < 0.75:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):  # damaged before
            return octets(rng, data, data)
        return json.dumps(json_document(rng, document), ensure_ascii=rng.random() < 0.5).encode(
            "utf-8", "surrogatepass"
        )
    if chance < 0.99:
        return text(rng, data) if chance < 0.9 else octets(rng, data, data)
    deep = rng.choice((b"[", b'{"a":')) * rng.choice((500, 5000, 100_000))
    return data.replace(b": 1", b": " + deep, 1) if chance < 0.995 else deep


def message(rng: Random, sound: Any, *, depth: int = 12) -> bytes:
    """Change fields of a protobuf message, those of the messages within it too; `sound` stays as it is."""
    changed = type(sound)()
    changed.CopyFrom(sound)
    for _ in range(_count(rng)):
        target = changed
        for _ in range(rng.randrange(depth)):
            inner = [each for field, value in target.ListFields() if field.message_type for each in _each(field, value)]
            if not inner or rng.random() < 0.1:
                break
            target = rng.choice(inner)
        _change_field(rng, target)
    return changed.SerializeToString()


def _each(field: Any, value: Any) -> Any:
    return value if field.is_repeated else (value,)


def _change_field(rng: Random, target: Any) -> None:
    fields = [field for field, _ in target.ListFields()]
    field = rng.choice(fields if fields and rng.random() < 0.8 else list(target.DESCRIPTOR.fields))
    value = getattr(target, field.name)
    if field.is_repeated and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                del value[at]
            case 1 if field.message_type:
                value.add().CopyFrom(value[at])
            case 2 if field.message_type:
                value[at].CopyFrom(value[rng.randrange(len(value))])
            case _ if not field.message_type:
                value[at] = _scalar(rng, field, value[at])
    elif field.is_repeated:
        if field.message_type:
            value.add()
        else:
            value.append(_scalar(rng, field, None))
    elif rng.random() < 0.3:
        target.ClearField(field.name)
    elif field.message_type:
        getattr(target, field.name).SetInParent()
    else:
        setattr(target, field.name, _scalar(rng, field, value))


def _scalar(rng: Random, field: Any, now: Any) -> Any:
    """Return a value that a field can hold, near the one that it has or far off."""
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return octets(rng, now or b"", now or b"")
        chosen = rng.choice((*TEXTS, f"{now}x", "Conv", "Relu", "Add", "If", "Loop", "Identity", "y", "float"))
        return chosen.encode("utf-8", "replace").decode()
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"), float("-inf")))
    if kind == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == field.CPPTYPE_ENUM:
        return rng.choice(list(field.enum_type.values_by_number))
    bits = 31 if kind == field.CPPTYPE_INT32 else 63
    near = (now or 0) + rng.choice((-1, 1, 2))
    chosen = rng.choice((0, 1, -1, 2, 3, 7, 11, 16, 24, 99, 2**16, 2**31 - 1, 2**bits - 1, -(2**bits), near, near))
    least = 0 if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) else -(2**bits)
    return max(least, min(chosen, 2**bits - 1))


def archive(rng: Random, data: bytes) -> bytes:
    """Change an .npz: its members and their names, whole again afterwards, or its bytes."""
    if rng.random() < 0.2:
        return octets(rng, data, data)
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        members = [(info.filename, opened.read(info)) for info in opened.infolist()]
    for _ in range(_count(rng)):
        if not members:
            break
        at = rng.randrange(len(members))
        name, content = members[at]
        match rng.randrange(8):
            case 0:
                del members[at]
            case 1:
                members[at] = (_with_part(rng, name.replace("\0", ""), rng.choice(TEXTS).replace("\0", "")), content)
            case 2:
                members.append((name, rng.choice(members)[1]))
            case 3:
                members[at] = (name, rng.choice(members)[1])
            case _ if name == "header.npy":
                members[at] = (name, _json_member(rng, content))
            case _:
                members[at] = (name, npy(rng, content))
    result = io.BytesIO()
    compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with warnings.catch_warnings(), zipfile.ZipFile(result, "w", compression) as written:
        warnings.simplefilter("ignore")  # names that are there twice
        for name, content in members:
            try:
                written.writestr(zipfile.ZipInfo(name or "x"), content)
            except (ValueError, UnicodeEncodeError, struct.error):  # a name that no archive holds
                continue
    return result.getvalue()


def _json_member(rng: Random, content: bytes) -> bytes:
    """Change JSON that is stored as an array of bytes."""
    size = 10 + int.from_bytes(content[8:10], "little")
    changed = json_text(rng, content[size:])
    header = content[10:size].replace(str(len(content) - size).encode(), str(len(changed)).encode())
    return content[:8] + len(header).to_bytes(2, "little") + header + changed


def npy(rng: Random, data: bytes) -> bytes:
    """Change the header of an .npy as text, with its length right, or its values, or any bytes."""
    chance = rng.random()
    if chance < 0.2 or data[:6] != b"\x93NUMPY":
        return octets(rng, data, data)
    size = 10 + int.from_bytes(data[8:10], "little")
    if chance < 0.5:
        values = octets(rng, data[size:], data)
        return data[:size] + (values[: len(data) - size].ljust(len(data) - size, b"\0") if chance < 0.4 else values)
    words = (
        "'<f8'",
        "'|O'",
        "'<i8'",
        "'|S10'",
        "'<U3'",
        "'<f2'",
        "'|b1'",
        "'<M8[ns]'",
        "[('a', '<f4')]",
        "'<c16'",
        "'|V0'",
    )
    shapes = (
        "(0,)",
        "()",
        "(-1, 3)",
        "(1099511627776, 3, 8, 8)",
        "(2, 0, 8, 8)",
        "(9223372036854775807, 3, 8, 8)",
        "(1.5,)",
    )
    header = text(rng, data[10:size], (*words, *shapes, "True", "False", "'descr'", "__import__('os')", "(" * 300))
    if rng.random() < 0.1:
        version, length = rng.choice(((2, 4), (3, 4), (9, 2)))
        header = header[: 256**length - 1]
        return data[:6] + bytes((version, 0)) + len(header).to_bytes(length, "little") + header + data[size:]
    return data[:8] + min(len(header), 65535).to_bytes(2, "little") + header + data[size:]


def png(rng: Random, data: bytes) -> bytes:
    """Change the chunks of a PNG, checksums right again; of another image the bytes."""
    if data[:4] != b"\x89PNG" or rng.random() < 0.3:
        return octets(rng, data, data)
    chunks, at = [], 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    for _ in range(_count(rng)):
        at = rng.randrange(len(chunks))
        kind, content = chunks[at]
        match rng.randrange(6):
            case 0 if len(chunks) > 1:
                del chunks[at]
            case 1:
                chunks.insert(rng.randrange(len(chunks) + 1), chunks[at])
            case 2:
                names = (
                    b"IDAT",
                    b"PLTE",
                    b"tRNS",
                    b"eXIf",
                    b"iCCP",
                    b"zTXt",
                    b"acTL",
                    b"fcTL",
                    b"fdAT",
                    b"iTXt",
                    b"gAMA",
                )
                chunks[at] = (rng.choice(names), content)
            case 3:
                chunks[at] = (kind, zlib.compress(octets(rng, b"\0" * 500, content)))
            case _:
                chunks[at] = (kind, octets(rng, content, data))
    parts = [
        len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
        for kind, content in chunks
    ]
    return data[:8] + b"".join(parts)


def _count(rng: Random) -> int:
    """Return how many changes are made: one mostly, seldom many."""
    return min(1 + int(rng.expovariate(0.8)), 12)
