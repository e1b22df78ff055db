"""Keys, signatures and their texts agree with the published vectors and with a second implementation."""

import csv
import hashlib
from collections.abc import Callable
from pathlib import Path

import nostr_sdk  # type: ignore[import-untyped]  # the package ships no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol import keys
from holdfast.protocol.refusal import Refusal, Refused

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors" / "bip340.csv"
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

SECRET = hashlib.sha256(b"a secret for tests").digest()
PUBKEY = keys.public_key(SECRET)
DIGEST = hashlib.sha256(b"a message").digest()
AUX = bytes(32)
SIGNATURE = keys.sign(SECRET, DIGEST, AUX)

SECRETS = st.integers(1, ORDER - 1).map(lambda scalar: scalar.to_bytes(32, "big"))
PUBLISHED_NPUB = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg"
PUBLISHED_NPUB_HEX = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e"
PUBLISHED_NSEC = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"
PUBLISHED_NSEC_HEX = "67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa"


@pytest.mark.skipif(not VECTORS.is_file(), reason="the published BIP-340 file is not beside this repository")
def test_the_published_signatures_hold() -> None:
    rows = list(csv.DictReader(VECTORS.read_text().splitlines()))
    assert len(rows) >= 19
    for row in rows:
        message, signature = bytes.fromhex(row["message"]), bytes.fromhex(row["signature"])
        good = keys.verify(row["public key"].lower(), message, signature)
        assert good is (row["verification result"] == "TRUE"), row
        if row["secret key"]:
            assert keys.public_key(bytes.fromhex(row["secret key"])) == row["public key"].lower(), row
        if row["secret key"] and len(message) == keys.DIGEST_BYTES:  # the library signs digests only
            signed = keys.sign(bytes.fromhex(row["secret key"]), message, bytes.fromhex(row["aux_rand"]))
            assert signed == signature, row


@settings(max_examples=30)
@given(SECRETS, st.binary(min_size=32, max_size=32))
def test_a_second_implementation_agrees_on_keys_and_their_texts(secret: bytes, message: bytes) -> None:
    peer = nostr_sdk.Keys.parse(secret.hex())
    assert keys.public_key(secret) == peer.public_key().to_hex()
    assert keys.npub(keys.public_key(secret)) == peer.public_key().to_bech32()
    assert keys.nsec(secret) == peer.secret_key().to_bech32()
    signed = bytes.fromhex(peer.sign_schnorr(message))
    assert keys.verify(keys.public_key(secret), message, signed)


@settings(max_examples=30)
@given(SECRETS, st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_signature_verifies_and_the_same_input_signs_to_the_same_bytes(
    secret: bytes, digest: bytes, aux: bytes
) -> None:
    signature = keys.sign(secret, digest, aux)
    assert keys.verify(keys.public_key(secret), digest, signature)
    assert keys.sign(secret, digest, aux) == signature


def test_every_flipped_bit_breaks_a_signature() -> None:
    for position in range(8 * 64):
        forged = bytearray(SIGNATURE)
        forged[position // 8] ^= 1 << position % 8
        assert not keys.verify(PUBKEY, DIGEST, bytes(forged)), position


def test_a_signature_is_of_one_key_and_one_digest() -> None:
    assert keys.verify(PUBKEY, DIGEST, SIGNATURE)
    assert not keys.verify(keys.public_key(b"\x01" * 32), DIGEST, SIGNATURE)
    assert not keys.verify(PUBKEY, DIGEST[::-1], SIGNATURE)


@pytest.mark.parametrize(
    ("pubkey", "signature"),
    [
        ("", SIGNATURE),
        (PUBKEY[:-2], SIGNATURE),
        (PUBKEY + "00", SIGNATURE),
        (PUBKEY.upper(), SIGNATURE),
        (PUBKEY[:-1] + "g", SIGNATURE),
        (PUBKEY[:-1] + "é", SIGNATURE),
        (" " + PUBKEY[:-1], SIGNATURE),
        (f"{PUBKEY[:2]} {PUBKEY[2:]}", SIGNATURE),
        ("ff" * 32, SIGNATURE),
        ("00" * 32, SIGNATURE),
        (PUBKEY, b""),
        (PUBKEY, SIGNATURE[:-1]),
        (PUBKEY, SIGNATURE + b"\x00"),
        (PUBKEY, bytes(64)),
        (PUBKEY, b"\xff" * 64),
    ],
)
def test_bad_input_verifies_as_false_and_never_raises(pubkey: str, signature: bytes) -> None:
    assert keys.verify(pubkey, DIGEST, signature) is False


@given(st.text(), st.binary(), st.binary())
def test_no_input_makes_verify_raise(pubkey: str, digest: bytes, signature: bytes) -> None:
    assert keys.verify(pubkey, digest, signature) is False


def test_is_public_key_knows_the_points_of_the_curve() -> None:
    assert keys.is_public_key(PUBKEY)
    for text in ("ff" * 32, "00" * 32, PUBKEY.upper(), PUBKEY[:-2], "x" * 64):
        assert not keys.is_public_key(text), text


@pytest.mark.parametrize(
    "secret", [b"", b"\x01" * 31, b"\x01" * 33, bytes(32), ORDER.to_bytes(32, "big"), b"\xff" * 32]
)
def test_a_secret_key_outside_of_its_range_is_refused_everywhere(secret: bytes) -> None:
    uses: list[Callable[[], object]] = [
        lambda: keys.public_key(secret),
        lambda: keys.sign(secret, DIGEST, AUX),
        lambda: keys.shared_x(secret, PUBKEY),
        lambda: keys.nsec(secret),
    ]
    for use in uses:
        with pytest.raises(Refused, match="secret key") as refused:
            use()
        assert refused.value.refusal is Refusal.MALFORMED


@pytest.mark.parametrize("aux", [b"", bytes(31), bytes(33)])
def test_signing_draws_no_randomness_of_its_own(aux: bytes) -> None:
    with pytest.raises(ValueError, match="auxiliary"):
        keys.sign(SECRET, DIGEST, aux)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_only_digests_are_signed(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        keys.sign(SECRET, bytes(size), AUX)


@settings(max_examples=10)
@given(SECRETS, SECRETS)
def test_both_sides_share_one_point(one: bytes, other: bytes) -> None:
    shared = keys.shared_x(one, keys.public_key(other))
    assert len(shared) == 32
    assert shared == keys.shared_x(other, keys.public_key(one))


def test_the_shared_point_with_the_generator_is_the_public_key() -> None:
    generator = keys.public_key((1).to_bytes(32, "big"))
    assert keys.shared_x(SECRET, generator).hex() == PUBKEY


@pytest.mark.parametrize(
    ("pubkey", "fault"),
    [("ff" * 32, "not on the curve"), (PUBKEY.upper(), "lower-case hex"), ("", "lower-case hex")],
)
def test_no_point_is_shared_with_what_is_no_public_key(pubkey: str, fault: str) -> None:
    with pytest.raises(Refused, match=fault) as refused:
        keys.shared_x(SECRET, pubkey)
    assert refused.value.refusal is Refusal.MALFORMED


def test_the_published_npub_and_nsec_are_read_and_written() -> None:
    assert keys.npub(PUBLISHED_NPUB_HEX) == PUBLISHED_NPUB
    assert keys.read_npub(PUBLISHED_NPUB) == PUBLISHED_NPUB_HEX
    assert keys.nsec(bytes.fromhex(PUBLISHED_NSEC_HEX)) == PUBLISHED_NSEC
    assert keys.read_nsec(PUBLISHED_NSEC).hex() == PUBLISHED_NSEC_HEX


@settings(max_examples=50)
@given(SECRETS)
def test_npub_and_nsec_read_back_what_was_written(secret: bytes) -> None:
    assert keys.read_nsec(keys.nsec(secret)) == secret
    pubkey = keys.public_key(secret)
    assert keys.read_npub(keys.npub(pubkey)) == pubkey
    assert keys.read_npub(keys.npub(pubkey).upper()) == pubkey


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "must start with npub1"),
        (PUBLISHED_NSEC, "must start with npub1"),
        ("npub" + PUBLISHED_NPUB[5:], "must start with npub1"),
        (PUBLISHED_NPUB[:-1], "length of a key"),
        (PUBLISHED_NPUB + "q", "length of a key"),
        ("npub1", "length of a key"),
        (PUBLISHED_NPUB[:-1] + "G", "mixed"),
        ("Npub1" + PUBLISHED_NPUB[5:], "mixed"),
        (PUBLISHED_NPUB[:-1] + "b", "alphabet"),
        (PUBLISHED_NPUB[:-1] + "é", "alphabet"),
        (PUBLISHED_NPUB[:-1] + " ", "alphabet"),
        (PUBLISHED_NPUB[:-1] + "q", "checksum"),
        ("npub1" + PUBLISHED_NSEC[5:], "checksum"),
    ],
)
def test_a_wrong_npub_is_refused_with_its_fault(text: str, fault: str) -> None:
    with pytest.raises(Refused, match=fault) as refused:
        keys.read_npub(text)
    assert refused.value.refusal is Refusal.MALFORMED


def test_every_mistyped_character_of_an_npub_is_noticed() -> None:
    alphabet = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
    for position in range(5, len(PUBLISHED_NPUB)):
        for character in alphabet.replace(PUBLISHED_NPUB[position], ""):
            mistyped = PUBLISHED_NPUB[:position] + character + PUBLISHED_NPUB[position + 1 :]
            with pytest.raises(Refused, match="checksum"):
                keys.read_npub(mistyped)


def test_bits_after_the_key_must_be_zero() -> None:
    groups = keys._groups_of_five(bytes.fromhex(PUBLISHED_NPUB_HEX))
    groups[-1] |= 1
    checksum = keys._polymod([*keys._expanded("npub"), *groups, *[0] * 6]) ^ 1
    alphabet = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
    data = [*groups, *(checksum >> 5 * (5 - place) & 31 for place in range(6))]
    with pytest.raises(Refused, match="bits after the key"):
        keys.read_npub("npub1" + "".join(alphabet[group] for group in data))


def test_an_npub_of_no_point_and_an_nsec_of_no_key_are_refused() -> None:
    with pytest.raises(Refused, match="not on the curve"):
        keys.read_npub(keys.npub("ff" * 32))
    with pytest.raises(Refused, match="order of the curve"):
        keys.read_nsec(keys._bech32("nsec", bytes(32)))


@pytest.mark.parametrize("pubkey", ["", PUBKEY.upper(), PUBKEY[:-2], "x" * 64])
def test_no_npub_is_written_of_what_is_no_key(pubkey: str) -> None:
    with pytest.raises(Refused, match="lower-case hex"):
        keys.npub(pubkey)


def test_refusals_of_secrets_do_not_quote_them() -> None:
    for use in (lambda: keys.read_nsec(PUBLISHED_NSEC[:-1] + "q"), lambda: keys.public_key(b"\xff" * 32)):
        with pytest.raises(Refused) as refused:
            use()
        assert PUBLISHED_NSEC[10:40] not in str(refused.value)
        assert "ff" * 8 not in str(refused.value)
