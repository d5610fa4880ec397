"""Files that nobody can read or make without a key: AES-GCM, by the `cryptography` package."""

import os
from collections.abc import Iterable
from hashlib import blake2b

from tahr.errors import ConfigError, install_extra

KEY_BYTES = 32
NONCE_BYTES = 12
EXTRA_BYTES = NONCE_BYTES + 16  # bytes that a sealed payload has beyond a plain one
ID_BYTES = 16


class Seal:
    """Seals the payloads of files. Headers are not secret, but are part of what is checked."""

    def __init__(self, key: bytes):
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ConfigError(
                f"A key for files of keys and values needs the cryptography package: run {install_extra('kv-disk')}."
            ) from None
        self._cipher = AESGCM(key)
        self.id = blake2b(key, digest_size=ID_BYTES, person=b"tahr-kv-key").digest()  # tells keys apart

    def close(self, parts: Iterable[memoryview], header: bytes) -> bytes:
        """The sealed bytes of a payload."""
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._cipher.encrypt(nonce, b"".join(parts), header)
        return nonce + sealed

    def open(self, sealed: bytes, header: bytes) -> bytes:
        """The payload; a ValueError if it was not sealed with this key and this header."""
        from cryptography.exceptions import InvalidTag

        try:
            payload: bytes = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], header)
        except InvalidTag:
            raise ValueError("it was not sealed with this key") from None
        return payload


def parse_key(content: bytes, name: str) -> bytes:
    """A key from the content of a file: so many bytes, or twice as many hexadecimal digits."""
    if len(content) == KEY_BYTES:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{name} holds no key: it must be {2 * KEY_BYTES} hexadecimal digits, as `openssl rand -hex {KEY_BYTES}` "
            "prints them."
        )
    return key
