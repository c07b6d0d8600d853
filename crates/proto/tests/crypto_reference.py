"""Section 9 of docs/protocol.md once more, written from the page with Python's standard library alone: prints the test vectors.

Slow and not constant in time: for comparison only. crypto_vectors.rs runs it and compares.
"""

import hashlib
import hmac

# --- BLAKE2s, and HKDF as Noise defines it ---


def derive(key, label, *parts, size=32):
    return hashlib.blake2s(label + b"".join(parts), key=key, digest_size=size).digest()


def blake2s(data):
    return hashlib.blake2s(data).digest()


def hkdf(chaining_key, material, outputs):
    extract = lambda key, data: hmac.new(key, data, hashlib.blake2s).digest()
    secret, out, last = extract(chaining_key, material), [], b""
    for i in range(outputs):
        last = extract(secret, last + bytes([i + 1]))
        out.append(last)
    return out


# --- X25519 (RFC 7748) ---

P = 2**255 - 19


def x25519(scalar, point):
    k = int.from_bytes(scalar, "little") & ~7 & ~(1 << 255) | 1 << 254
    u = int.from_bytes(point, "little") & ~(1 << 255)
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        e = aa - bb
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


BASE = (9).to_bytes(32, "little")

# --- ChaCha20-Poly1305 (RFC 8439) ---


def chacha20_block(key, counter, nonce):
    words = lambda data: [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
    start = words(b"expand 32-byte k" + key + counter.to_bytes(4, "little") + nonce)
    s = start[:]
    rotate = lambda v, n: (v << n | v >> 32 - n) & 0xFFFFFFFF

    def quarter(a, b, c, d):
        for x, y, z, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & 0xFFFFFFFF
            s[z] = rotate(s[z] ^ s[x], n)

    for _ in range(10):
        for i in range(4):
            quarter(i, i + 4, i + 8, i + 12)
        for i in range(4):
            quarter(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12)
    return b"".join(((a + b) & 0xFFFFFFFF).to_bytes(4, "little") for a, b in zip(s, start))


def xor(a, b):
    return bytes(x ^ y for x, y in zip(a, b))


def pad16(data):
    return data + bytes(-len(data) % 16)


def chacha20_poly1305(key, nonce, aad, plain):
    stream = b"".join(chacha20_block(key, 1 + i, nonce) for i in range(len(plain) // 64 + 1))
    sealed = xor(plain, stream)
    once = chacha20_block(key, 0, nonce)
    r = int.from_bytes(once[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    data = pad16(aad) + pad16(sealed) + len(aad).to_bytes(8, "little") + len(sealed).to_bytes(8, "little")
    total = 0
    for i in range(0, len(data), 16):
        total = (total + int.from_bytes(data[i : i + 16] + b"\1", "little")) * r % (2**130 - 5)
    tag = (total + int.from_bytes(once[16:32], "little")) & (1 << 128) - 1
    return sealed + tag.to_bytes(16, "little")


# --- AES-256-GCM (FIPS 197, SP 800-38D) ---


def double(a):
    return (a << 1 ^ 0x11B) & 0xFF if a & 0x80 else a << 1


def make_sbox():
    box, p, q = [0x63] + [0] * 255, 1, 1
    while True:
        p ^= double(p)
        for shift in (1, 2, 4):
            q ^= q << shift & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        turned = [(q << n | q >> 8 - n) & 0xFF for n in range(5)]
        box[p] = turned[0] ^ turned[1] ^ turned[2] ^ turned[3] ^ turned[4] ^ 0x63
        if p == 1:
            return box


SBOX = make_sbox()


def aes256_round_keys(key):
    words, constant = [key[i : i + 4] for i in range(0, 32, 4)], 1
    for i in range(8, 60):
        word = words[-1]
        if i % 8 == 0:
            word = bytes(SBOX[b] for b in word[1:] + word[:1])
            word, constant = bytes([word[0] ^ constant]) + word[1:], double(constant)
        elif i % 8 == 4:
            word = bytes(SBOX[b] for b in word)
        words.append(xor(words[i - 8], word))
    return [b"".join(words[i : i + 4]) for i in range(0, 60, 4)]


def aes_block(round_keys, block):
    state = xor(block, round_keys[0])
    for number, round_key in enumerate(round_keys[1:], 1):
        state = bytes(SBOX[state[(5 * i) % 16]] for i in range(16))
        if number < 14:
            mixed = []
            for column in (state[i : i + 4] for i in range(0, 16, 4)):
                every = column[0] ^ column[1] ^ column[2] ^ column[3]
                mixed += [b ^ every ^ double(b ^ column[(i + 1) % 4]) for i, b in enumerate(column)]
            state = bytes(mixed)
        state = xor(state, round_key)
    return state


def aes256_gcm(key, nonce, aad, plain):
    keys = aes256_round_keys(key)
    counters = (nonce + (2 + i).to_bytes(4, "big") for i in range(len(plain) // 16 + 1))
    sealed = xor(plain, b"".join(aes_block(keys, counter) for counter in counters))
    h, total = int.from_bytes(aes_block(keys, bytes(16)), "big"), 0
    data = pad16(aad) + pad16(sealed) + (8 * len(aad)).to_bytes(8, "big") + (8 * len(sealed)).to_bytes(8, "big")
    for i in range(0, len(data), 16):
        x, v, total = total ^ int.from_bytes(data[i : i + 16], "big"), h, 0
        for bit in reversed(range(128)):
            if x >> bit & 1:
                total ^= v
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
    return sealed + xor(total.to_bytes(16, "big"), aes_block(keys, nonce + b"\0\0\0\1"))


# --- Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s ---


class Noise:
    def __init__(self, prologue):
        name = b"Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s"
        self.h = name + bytes(32 - len(name)) if len(name) <= 32 else blake2s(name)
        self.ck = self.h
        self.mix_hash(prologue)

    def mix_hash(self, data):
        self.h = blake2s(self.h + data)

    def mix_key(self, material):
        self.ck, self.k = hkdf(self.ck, material, 2)
        self.n = 0

    def mix_psk(self, psk):
        self.ck, mixed, self.k = hkdf(self.ck, psk, 3)
        self.mix_hash(mixed)
        self.n = 0

    def mix_point(self, point):
        self.mix_hash(point)
        self.mix_key(point)

    def encrypt(self, plain):
        sealed = chacha20_poly1305(self.k, bytes(4) + self.n.to_bytes(8, "little"), self.h, plain)
        self.n += 1
        self.mix_hash(sealed)
        return sealed

    def split(self):
        return hkdf(self.ck, b"", 2)


# --- Section 9 ---


def ephemeral(random, psk, prologue, message):
    """Not part of the protocol, only of how Ropeway makes its ephemeral keys."""
    return derive(random, b"ropeway 1 ephemeral", psk, len(prologue).to_bytes(8, "big"), prologue, message)


def packet(secret, generation, counter, header, payload):
    for _ in range(generation):
        secret = derive(secret, b"ropeway 1 next")
    key, iv = derive(secret, b"ropeway 1 key"), derive(secret, b"ropeway 1 iv")[:12]
    header = header[:1] + bytes([header[1] & 0xBF | 0x40 * (generation & 1)]) + header[2:]
    aad = header + (counter & 0xFFFFFFFF).to_bytes(4, "big")
    return aad + aes256_gcm(key, xor(iv, bytes(4) + counter.to_bytes(8, "big")), aad, payload)


def main():
    cluster_key = bytes((7 * i + 1) & 0xFF for i in range(32))
    prologue = bytes(range(112))
    early, answer = b"early data " * 11, b"the answer of the server, 36 bytes.."
    opened_header = bytes(range(0x40, 0x58))
    psk = derive(cluster_key, b"ropeway 1 psk")

    noise = Noise(prologue)
    client = ephemeral(bytes([0xC1] * 32), psk, prologue, b"")
    point = x25519(client, BASE)
    noise.mix_psk(psk)
    noise.mix_point(point)
    confirm = point + noise.encrypt(early)

    server = ephemeral(bytes([0x5E] * 32), psk, prologue, confirm)
    server_point = x25519(server, BASE)
    noise.mix_point(server_point)
    noise.mix_key(x25519(server, point))
    opened = server_point + noise.encrypt(blake2s(opened_header)[:16] + answer)
    to_server, to_client = noise.split()

    header = bytes([0x17, 0x01]) + bytes(range(2, 28))
    payload = bytes(i & 0xFF for i in range(1472))
    seed = bytes([0x0C] * 32)
    cookies, resets = derive(seed, b"ropeway 1 cookie"), derive(seed, b"ropeway 1 reset")
    path, fields = b"a path", b"the fields of a SYN"
    cookie_input = [(0x501020304).to_bytes(8, "big"), len(path).to_bytes(8, "big"), path, fields]
    reset_input = [(0xAABBCCDD).to_bytes(4, "big"), (5).to_bytes(8, "big")]
    vectors = {
        "psk": psk,
        "confirm": confirm,
        "opened": opened,
        "client 0 0": packet(to_server, 0, 0, header, payload),
        "server 0 0": packet(to_client, 0, 0, header[:24], b""),
        "client 1 1": packet(to_server, 1, 1, header[:24], payload[:100]),
        "server 1 1": packet(to_client, 1, 1, header, payload[:16]),
        "client 2 2": packet(to_server, 2, 2, header, b"\0"),
        "cookie": derive(cookies, b"", *cookie_input, size=16),
        "reset": derive(resets, b"", *reset_input, size=16),
    }
    for name, value in vectors.items():
        print(f"{name} = {value.hex()}")


if __name__ == "__main__":
    main()
