"""Small random harm to good content: to bytes, and to values of JSON."""

import copy
import random
from typing import Any

NUMBERS = [0, 1, -1, 2, 3, 10, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 10**30, 10**400]
FLOATS = [0.0, -0.0, 0.5, -1.5, 1e-300, 1e308, float("inf"), float("-inf"), float("nan")]
WORDS = [
    "",
    "a",
    "natural",
    "8/255",
    "1/0",
    "inf",
    "\x00",
    "\x1b[2J",
    "../../x",
    "é\u2028",
    "\ud800",
    "os:system",
    "x" * 300,
]
PIECES = [
    b"\x00",
    b"\xff" * 4,
    b"\xff" * 8,
    b"\x00" * 8,
    b"\x00\x00\x00\x80",
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"{",
    b'"',
    b"[[",
    b"\n",
    b"0x",
]


def harm_bytes(draw: random.Random, content: bytes) -> bytes:
    """One to four of: a flipped bit, a cut, a piece put in, taken out, doubled, moved or written over."""
    result = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        size = len(result)
        at = draw.randrange(size + 1)
        some = min(size, at + draw.choice((1, 2, 4, 8, 50)))
        match draw.randrange(7):
            case 0 if at < size:
                result[at] ^= 1 << draw.randrange(8)
            case 1:
                del result[at:]
            case 2:
                result[at:at] = draw.choice(PIECES) if draw.random() < 0.5 else draw.randbytes(draw.randint(1, 20))
            case 3:
                del result[at:some]
            case 4:
                result[at:at] = result[at:some]
            case 5:
                piece = result[at:some]
                del result[at:some]
                to = draw.randrange(len(result) + 1)
                result[to:to] = piece
            case _:
                piece = bytearray(draw.choice(PIECES))
                result[at : at + len(piece)] = piece
    return bytes(result)


def any_value(draw: random.Random, depth: int = 2) -> Any:
    """Something that JSON can hold."""
    match draw.randrange(8 if depth else 6):
        case 0:
            return draw.choice(NUMBERS)
        case 1:
            return draw.choice(FLOATS)
        case 2:
            return draw.choice(WORDS)
        case 3:
            return draw.random() < 0.5
        case 4:
            return None
        case 5:
            return draw.randint(-5, 20)
        case 6:
            return [any_value(draw, depth - 1) for _ in range(draw.randrange(4))]
        case _:
            return {draw.choice(WORDS): any_value(draw, depth - 1) for _ in range(draw.randrange(3))}


def harm_value(draw: random.Random, value: Any) -> Any:
    """A copy in which one to three places, at any depth, hold something else, or nothing, or more."""
    holder = {"": copy.deepcopy(value)}
    for _ in range(draw.randint(1, 3)):
        node: Any = holder
        key: Any = ""
        while isinstance(node[key], dict | list) and len(node[key]) and (node is holder or draw.random() < 0.8):
            node = node[key]
            key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
        match draw.randrange(4):
            case 0 if node is not holder:
                del node[key]
                if not node:
                    break
            case 1 if isinstance(node[key], dict):
                node[key][draw.choice(WORDS)] = any_value(draw)
            case 2 if isinstance(node[key], list):
                node[key].append(any_value(draw))
            case _:
                node[key] = any_value(draw)
    return holder[""]
