"""Sealed payloads open to what was sealed, to nobody else, and to a second implementation as well."""

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import nostr_sdk  # type: ignore[import-untyped]  # the package ships no types
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol import keys, sealing
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.sealing import ConversationKeys, conversation_key, is_payload, open_sealed, padded_length, seal

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors" / "nip44.json"
needs_vectors = pytest.mark.skipif(
    not VECTORS.is_file(), reason="the published NIP-44 file is not beside this repository"
)

ALICE = hashlib.sha256(b"alice").digest()
BOB = hashlib.sha256(b"bob").digest()
ALICE_PUBKEY, BOB_PUBKEY = keys.public_key(ALICE), keys.public_key(BOB)
KEY = conversation_key(ALICE, BOB_PUBKEY)
NONCE = hashlib.sha256(b"nonce").digest()
SEALED = seal(KEY, b"a secret", NONCE)

PEER_BYTES_MAX = 65_408  # the second implementation seals no more
STEPS = [32, 64, 96, 128, 224, 256, 320, 384, 512, 1024, 1280, 4096, 8192, 40_960, 49_152, 57_344]
AROUND_STEPS = sorted({1, 2, *(step + offset for step in STEPS for offset in (-1, 0, 1)), 65_407, 65_408})
LONG = [65_535, 65_536, 65_537, 81_920, 81_921, 100_000]


def slow_padded_length(length: int) -> int:
    """The twin of the padding rule: count up, step by step, until the plaintext fits."""
    power = 32
    while power < length:
        power *= 2
    step = 32 if power <= 256 else power // 8
    padded = 32
    while padded < length:
        padded += step - padded % step
    return padded


def expand(key: bytes, nonce: bytes) -> bytes:
    """The twin of the key derivation: HKDF-expand by hand, as its definition says."""
    output, block = b"", b""
    for counter in (1, 2, 3):
        block = hmac.digest(key, block + nonce + bytes((counter,)), "sha256")
        output += block
    return output[:76]


def padded_inside(key: bytes, payload: str) -> bytes:
    """What the cipher of a payload covers: length, plaintext and zeros."""
    data = b64decode(payload)
    derived = expand(key, data[1:33])
    cipher = Cipher(ChaCha20(derived[:32], bytes(4) + derived[32:44]), mode=None)
    return cipher.decryptor().update(data[33:-32])


def sealed_around(key: bytes, padded: bytes, nonce: bytes = NONCE) -> str:
    """An authentic payload around any bytes at all, as only a holder of the key can make one."""
    derived = expand(key, nonce)
    cipher = Cipher(ChaCha20(derived[:32], bytes(4) + derived[32:44]), mode=None)
    ciphertext = cipher.encryptor().update(padded)
    mac = hmac.digest(derived[44:], nonce + ciphertext, "sha256")
    return b64encode(b"\x02" + nonce + ciphertext + mac).decode()


def fault_of(payload: str, key: bytes = KEY) -> str:
    with pytest.raises(Refused) as refused:
        open_sealed(key, payload)
    assert refused.value.refusal is Refusal.UNREADABLE
    return refused.value.detail


def test_a_sealed_payload_opens_from_either_side() -> None:
    assert open_sealed(conversation_key(BOB, ALICE_PUBKEY), SEALED) == b"a secret"
    assert open_sealed(KEY, SEALED) == b"a secret"


def test_a_random_topic_key_seals_and_opens_alike() -> None:
    topic_key = hashlib.sha256(b"topic, key epoch 1").digest()
    payload = seal(topic_key, b"to all subscribers", NONCE)
    assert open_sealed(topic_key, payload) == b"to all subscribers"
    assert "changed" in fault_of(payload, hashlib.sha256(b"topic, key epoch 2").digest())


@given(
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=1, max_size=600),
    st.binary(min_size=32, max_size=32),
)
def test_any_plaintext_opens_again(key: bytes, plaintext: bytes, nonce: bytes) -> None:
    payload = seal(key, plaintext, nonce)
    assert open_sealed(key, payload) == plaintext
    assert len(payload) == sealing.payload_characters(len(plaintext))
    assert b64decode(payload)[1:33] == nonce


@pytest.mark.parametrize("length", AROUND_STEPS)
def test_a_second_implementation_opens_what_we_seal_and_we_what_it_seals(length: int) -> None:
    plaintext = ("é" * length).encode()[: length - length % 2].decode() + "x" * (length % 2)
    assert len(plaintext.encode()) == length <= PEER_BYTES_MAX
    bob, alice = nostr_sdk.Keys.parse(BOB.hex()), nostr_sdk.Keys.parse(ALICE.hex())
    ours = seal(KEY, plaintext.encode(), NONCE)
    assert nostr_sdk.nip44_decrypt(bob.secret_key(), alice.public_key(), ours) == plaintext
    version = nostr_sdk.Nip44Version.V2
    theirs = nostr_sdk.nip44_encrypt(bob.secret_key(), alice.public_key(), plaintext, version)
    assert len(theirs) == len(ours)
    assert open_sealed(KEY, theirs) == plaintext.encode()


@settings(max_examples=20)
@given(st.integers(1, 2**200), st.integers(1, 2**200), st.text(min_size=1))
def test_a_second_implementation_finds_the_same_conversation_key(one: int, other: int, text: str) -> None:
    mine, yours = one.to_bytes(32, "big"), other.to_bytes(32, "big")
    author, reader = nostr_sdk.Keys.parse(mine.hex()), nostr_sdk.Keys.parse(yours.hex())
    version = nostr_sdk.Nip44Version.V2
    theirs = nostr_sdk.nip44_encrypt(author.secret_key(), reader.public_key(), text, version)
    assert open_sealed(conversation_key(yours, keys.public_key(mine)), theirs) == text.encode()


@pytest.mark.parametrize("length", LONG)
def test_a_long_plaintext_opens_again(length: int) -> None:
    plaintext = hashlib.shake_128(b"long").digest(length)
    assert open_sealed(KEY, seal(KEY, plaintext, NONCE)) == plaintext


@pytest.mark.parametrize("length", [1, 32, 33, 300, *LONG])
def test_the_length_stands_before_the_plaintext_and_zeros_after_it(length: int) -> None:
    plaintext = b"\xaa" * length
    prefix = length.to_bytes(2, "big") if length < 65_536 else b"\x00\x00" + length.to_bytes(4, "big")
    zeros = bytes(slow_padded_length(length) - length)
    assert padded_inside(KEY, seal(KEY, plaintext, NONCE)) == prefix + plaintext + zeros


def test_the_padding_rule_is_that_of_its_slow_twin() -> None:
    for length in [*range(1, 3000), *AROUND_STEPS, *LONG, 1_048_576]:
        assert padded_length(length) == slow_padded_length(length), length
    assert padded_length(2**32 - 1) == 2**32


def test_the_largest_plaintext_is_sealed_and_opened_and_no_larger_one() -> None:
    largest = bytes(sealing.PLAINTEXT_BYTES_MAX)
    payload = seal(KEY, largest, NONCE)
    assert len(payload) == sealing.PAYLOAD_CHARACTERS_MAX
    assert open_sealed(KEY, payload) == largest
    with pytest.raises(Refused, match="1048577 bytes") as refused:
        seal(KEY, largest + b"\x00", NONCE)
    assert refused.value.refusal is Refusal.TOO_LARGE
    assert "characters, at most" in fault_of(payload + "AAAA")


def test_nothing_cannot_be_sealed() -> None:
    with pytest.raises(Refused, match="empty") as refused:
        seal(KEY, b"", NONCE)
    assert refused.value.refusal is Refusal.MALFORMED


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_and_nonces_have_their_length(size: int) -> None:
    with pytest.raises(ValueError, match="conversation key has 32 bytes"):
        seal(bytes(size), b"x", NONCE)
    with pytest.raises(ValueError, match="nonce has 32 bytes"):
        seal(KEY, b"x", bytes(size))
    with pytest.raises(ValueError, match="conversation key has 32 bytes"):
        open_sealed(bytes(size), SEALED)


def test_every_flipped_bit_is_noticed() -> None:
    data = b64decode(SEALED)
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        fault = fault_of(b64encode(flipped).decode())
        assert ("version" if position < 8 else "changed since") in fault, position


def test_every_changed_character_is_noticed() -> None:
    sealed = seal(KEY, b"x" * 33, NONCE)  # one of those that end in =
    assert sealed.endswith("=")
    for position, character in enumerate(sealed):
        for other in set("AB+/=-_ \n#é") - {character}:
            fault_of(sealed[:position] + other + sealed[position + 1 :])


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        ("", "0 characters, at least 132"),
        ("Ag==", "4 characters, at least 132"),
        ("A" * 131, "131 characters, at least 132"),
        ("#", "starts with #"),
        ("#" + SEALED[1:], "starts with #"),
        (SEALED[:-1], "131 characters"),
        (SEALED + "A", "not base64"),
        (SEALED + "=", "not base64 in its one spelling"),
        (SEALED + "====", "not base64 in its one spelling"),
        (SEALED + "\n", "not base64 in its one spelling"),
        (" " + SEALED, "not base64 in its one spelling"),
        (SEALED[:60] + "\n" + SEALED[60:], "not base64 in its one spelling"),
        (SEALED[:60] + "é" + SEALED[61:], "not base64"),
        (SEALED[:60] + "\ud800" + SEALED[61:], "not base64"),
        (SEALED[:60] + "-_" + SEALED[62:], "not base64"),
        (b64encode(b"\x00" + b64decode(SEALED)[1:]).decode(), "version 0 is not known"),
        (b64encode(b"\x01" + b64decode(SEALED)[1:]).decode(), "version 1 is not known"),
        (b64encode(b"\x03" + b64decode(SEALED)[1:]).decode(), "version 3 is not known"),
        (b64encode(b64decode(SEALED)[:97]).decode(), "changed since"),
        (b64encode(b64decode(SEALED) + b"\x00").decode(), "changed since"),
    ],
    ids=range(20),
)
def test_each_fault_of_a_payload_is_told(payload: str, fault: str) -> None:
    assert fault in fault_of(payload)


def test_spare_bits_of_base64_must_be_zero() -> None:
    sealed = seal(KEY, b"x" * 33, NONCE)
    assert len(b64decode(sealed)) % 3 == 2
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".index(sealed[-2])
    spelled = sealed[:-2] + "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[last | 1] + "="
    assert b64decode(spelled) == b64decode(sealed)
    assert spelled != sealed
    assert "one spelling" in fault_of(spelled)


def test_a_payload_is_authenticated_before_its_padding_is_looked_at() -> None:
    forged = bytearray(b64decode(sealed_around(KEY, bytes(34))))
    assert "padding" in fault_of(b64encode(forged).decode())
    forged[-1] ^= 1
    assert "changed since" in fault_of(b64encode(forged).decode())


@pytest.mark.parametrize(
    ("padded", "fault"),
    [
        (bytes(34), "long prefix before a short plaintext"),
        (b"\x00\x00\x00\x00\x00\x20" + bytes(32), "long prefix before a short plaintext"),
        (b"\x00\x00\x00\x00\xff\xff" + bytes(65_536), "long prefix before a short plaintext"),
        (b"\x00\x21" + bytes(32), "do not hold a plaintext of 33"),
        (b"\xff\xff" + bytes(32), "do not hold a plaintext of 65535"),
        (b"\x00\x20" + bytes(33), "do not hold a plaintext of 32"),
        (b"\x00\x20" + bytes(64), "do not hold a plaintext of 32"),
        (b"\x00\x20" + bytes(31), "do not hold a plaintext of 32"),
        (b"\x00\x00\x00\x01\x00\x00" + bytes(65_535), "do not hold a plaintext of 65536"),
        (b"\x00\x00\x00\x01\x00\x00" + bytes(65_537), "do not hold a plaintext of 65536"),
        (b"\x00\x00\xff\xff\xff\xff" + bytes(32), "do not hold a plaintext of 4294967295"),
    ],
    ids=range(11),
)
def test_wrong_padding_is_refused_even_from_a_holder_of_the_key(padded: bytes, fault: str) -> None:
    assert fault in fault_of(sealed_around(KEY, padded))


def test_a_declared_length_over_the_limit_is_refused_though_it_would_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = seal(KEY, bytes(100), NONCE)
    monkeypatch.setattr(sealing, "PLAINTEXT_BYTES_MAX", 99)
    assert "do not hold a plaintext of 100" in fault_of(payload)


@settings(max_examples=200)
@given(st.text(max_size=300) | st.binary(min_size=90, max_size=200).map(lambda data: b64encode(data).decode()))
def test_garbage_is_refused_and_nothing_else_is_raised(payload: str) -> None:
    fault_of(payload)


@settings(max_examples=300)
@given(
    st.integers(95, 300).map(lambda length: b64encode(b"\x02" + bytes(length - 1)).decode())
    | st.integers(1, 3000).map(lambda length: seal(KEY, bytes(length), bytes(32)))
    | st.text("Ag=/é", min_size=130, max_size=134)
)
def test_what_can_be_a_payload_is_told_from_outside(text: str) -> None:
    """Against the slow way: take it apart, put it together again, and look for a plaintext of that length."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        data = b""
    lengths = {1 + 32 + 2 + padded_length(length) + 32 for length in range(1, 4097)}
    possible = b64encode(data).decode() == text and len(data) in lengths and data[0] == 2
    assert is_payload(text) is possible


def test_the_lengths_of_payloads_at_the_edges_are_known() -> None:
    for plaintext in (1, 32, 33, 65_535, 65_536, 65_537, 1_048_575, 1_048_576):
        assert is_payload(seal(KEY, bytes(plaintext), bytes(32)))
    short, long = 1 + 32 + 2 + 65_536 + 32, 1 + 32 + 6 + 65_536 + 32
    lengths = [short - 32, short, short + 1, long - 1, long, long + 1, long + 16_384, short + 16_384]
    taken = [length for length in lengths if is_payload(b64encode(b"\x02" + bytes(length - 1)).decode())]
    assert taken == [short, long, long + 16_384]
    over = 1 + 32 + 6 + padded_length(1_048_577) + 32
    assert not is_payload(b64encode(b"\x02" + bytes(over - 1)).decode())


def test_remembered_conversation_keys_are_the_right_ones_and_bounded() -> None:
    remembered = ConversationKeys(ALICE, keys_max=2)
    others = [keys.public_key(bytes((seed,)) * 32) for seed in (1, 2, 3)]
    for pubkey in [*others, *reversed(others), *others]:
        assert remembered.key(pubkey) == conversation_key(ALICE, pubkey)
        assert len(remembered) <= 2


def test_the_least_recently_used_key_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def counted(exchange: keys.KeyExchange, pubkey: str) -> bytes:
        computed.append(pubkey)
        return bytes(32)

    monkeypatch.setattr(keys.KeyExchange, "shared_x", counted)
    remembered = ConversationKeys(ALICE, keys_max=2)
    for pubkey in "abacab":
        remembered.key(pubkey)
    assert computed == ["a", "b", "c", "b"]


def test_a_secret_key_is_made_ready_once_for_all_who_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[int] = []
    derive = ec.derive_private_key

    def counted(scalar: int, curve: Any) -> Any:
        derived.append(scalar)
        return derive(scalar, curve)

    monkeypatch.setattr(ec, "derive_private_key", counted)
    remembered = ConversationKeys(ALICE)
    found = [remembered.key(keys.public_key(bytes((seed,)) * 32)) for seed in range(1, 6)]
    assert len(derived) == 1
    assert len(set(found)) == 5


def test_a_key_that_cannot_be_shared_is_refused_each_time() -> None:
    remembered = ConversationKeys(ALICE)
    for _ in range(2):
        with pytest.raises(Refused, match="not on the curve"):
            remembered.key("ff" * 32)
    assert len(remembered) == 0


def test_remembered_keys_do_not_show_the_secret() -> None:
    assert ALICE.hex() not in repr(ConversationKeys(ALICE))
    assert repr(ALICE) not in repr(ConversationKeys(ALICE))


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    published: dict[str, Any] = json.loads(VECTORS.read_bytes())["v2"]
    return published


@needs_vectors
def test_the_published_conversation_keys_hold(vectors: dict[str, Any]) -> None:
    assert len(vectors["valid"]["get_conversation_key"]) >= 35
    for case in vectors["valid"]["get_conversation_key"]:
        assert conversation_key(bytes.fromhex(case["sec1"]), case["pub2"]).hex() == case["conversation_key"], case
    for case in vectors["invalid"]["get_conversation_key"]:
        with pytest.raises(Refused):
            conversation_key(bytes.fromhex(case["sec1"]), case["pub2"])


@needs_vectors
def test_the_published_message_keys_hold(vectors: dict[str, Any]) -> None:
    key = bytes.fromhex(vectors["valid"]["get_message_keys"]["conversation_key"])
    for case in vectors["valid"]["get_message_keys"]["keys"]:
        expected = tuple(bytes.fromhex(case[name]) for name in ("chacha_key", "chacha_nonce", "hmac_key"))
        assert sealing._message_keys(key, bytes.fromhex(case["nonce"])) == expected, case


@needs_vectors
def test_the_published_padded_lengths_hold(vectors: dict[str, Any]) -> None:
    assert len(vectors["valid"]["calc_padded_len"]) >= 24
    for length, padded in vectors["valid"]["calc_padded_len"]:
        assert padded_length(length) == padded


@needs_vectors
def test_the_published_payloads_hold(vectors: dict[str, Any]) -> None:
    assert len(vectors["valid"]["encrypt_decrypt"]) >= 10
    for case in vectors["valid"]["encrypt_decrypt"]:
        key = conversation_key(bytes.fromhex(case["sec1"]), keys.public_key(bytes.fromhex(case["sec2"])))
        assert key.hex() == case["conversation_key"]
        assert seal(key, case["plaintext"].encode(), bytes.fromhex(case["nonce"])) == case["payload"]
        assert open_sealed(key, case["payload"]).decode() == case["plaintext"]


@needs_vectors
def test_the_published_long_payloads_hold(vectors: dict[str, Any]) -> None:
    for case in vectors["valid"]["encrypt_decrypt_long_msg"]:
        plaintext = (case["pattern"] * case["repeat"]).encode()
        assert hashlib.sha256(plaintext).hexdigest() == case["plaintext_sha256"]
        key = bytes.fromhex(case["conversation_key"])
        payload = seal(key, plaintext, bytes.fromhex(case["nonce"]))
        assert hashlib.sha256(payload.encode()).hexdigest() == case["payload_sha256"]
        assert open_sealed(key, payload) == plaintext


@needs_vectors
def test_the_published_bad_payloads_are_refused(vectors: dict[str, Any]) -> None:
    told = {
        "version": "not known",
        "base64": "not base64",
        "MAC": "changed",
        "padding": "padding",
        "length": "characters",
    }
    for case in vectors["invalid"]["decrypt"]:
        fault = fault_of(case["payload"], bytes.fromhex(case["conversation_key"]))
        assert [words for name, words in told.items() if name in case["note"] and words in fault], case


@needs_vectors
def test_the_published_impossible_lengths_are_refused_but_for_those_made_possible_since(
    vectors: dict[str, Any],
) -> None:
    for length in vectors["invalid"]["encrypt_msg_lengths"]:
        if 65_536 <= length <= sealing.PLAINTEXT_BYTES_MAX:  # the file is older than the long prefix
            assert open_sealed(KEY, seal(KEY, bytes(length), NONCE)) == bytes(length)
        else:
            with pytest.raises(Refused):
                seal(KEY, bytes(length), NONCE)
