"""PNG files of every kind of pixel, filter and order, not all of which PIL can write."""
import struct
import zlib

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]  # Adam7


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def packed(samples, depth):
    """A row of samples as bytes."""
    if depth == 16:
        return struct.pack(">%dH" % len(samples), *samples)
    each = 8 // depth
    samples = samples + [0] * (-len(samples) % each)
    return bytes(sum(s << (8 - depth * (k + 1)) for k, s in enumerate(samples[i:i + each])) for i in range(0, len(samples), each))


def paeth(a, b, c):
    p = a + b - c
    return min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]


def filtered(rows, unit, pick):
    """Rows after their filter bytes; pick(y) chooses the filter."""
    out, above = b"", None
    for y, row in enumerate(rows):
        up, kind = above or bytes(len(row)), pick(y)
        left = bytes(unit) + row
        corner = bytes(unit) + up
        guess = [lambda i: 0, lambda i: left[i], lambda i: up[i], lambda i: (left[i] + up[i]) // 2, lambda i: paeth(left[i], up[i], corner[i])][kind]
        out += bytes([kind]) + bytes((row[i] - guess(i)) & 255 for i in range(len(row)))
        above = row
    return out


def png(width, height, colour, depth, sample, interlaced=False, pick=lambda y: y % 5, palette=b"", before=b"", claim=None, data=None):
    """sample(x, y, channel) gives the numbers; `before` is written before the pixels; claim: a different width and height in the
    header."""
    channels = CHANNELS[colour]
    unit = max(1, channels * depth // 8)
    stream = b""
    for x0, y0, dx, dy in PASSES if interlaced else [(0, 0, 1, 1)]:
        rows = [packed([sample(x, y, c) for x in range(x0, width, dx) for c in range(channels)], depth) for y in range(y0, height, dy)]
        stream += filtered(rows, unit, pick) if x0 < width else b""
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", *(claim or (width, height)), depth, colour, 0, 0, interlaced))
    out += chunk(b"PLTE", palette) if palette else b""
    return out + before + chunk(b"IDAT", zlib.compress(stream) if data is None else data) + chunk(b"IEND", b"")
