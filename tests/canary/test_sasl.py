"""SASL as values, against the examples of the RFCs."""

from __future__ import annotations

import pytest

from canary_image import sasl
from canary_image.sasl import SaslError

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def start(password: str = "pencil") -> tuple[sasl.Conversation, bytes]:
    conversation = sasl.scram("user", password, algorithm="sha256", nonce=NONCE)
    return conversation, next(conversation)


def test_scram_sha_256_as_in_rfc_7677():
    conversation, first = start()

    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert conversation.send(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        conversation.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_server_that_does_not_know_the_password_is_found_out():
    conversation, _ = start(password="another")
    conversation.send(SERVER_FIRST)

    with pytest.raises(SaslError, match="does not know the password"):
        conversation.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(b"", "not SCRAM", id="nothing"),
        pytest.param(b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce", id="a nonce that is not ours"),
        pytest.param(b"r=rOprNGfwEbeRWgbNEkqO,s=W22Z,i=4096", "nonce", id="our nonce and nothing more"),
        pytest.param(b"r=rOprNGfwEbeRWgbNEkqOx,s=W22Z,i=1", "iterations", id="too few iterations"),
        pytest.param(b"r=rOprNGfwEbeRWgbNEkqOx,s=W22Z,i=99999999", "iterations", id="too many iterations"),
        pytest.param(b"r=rOprNGfwEbeRWgbNEkqOx,s=W22Z,i=x", "not SCRAM", id="no number"),
        pytest.param(b"\xff\xfe", "not SCRAM", id="no text"),
    ],
)
def test_a_wrong_first_answer_ends_the_conversation(answer, reason):
    conversation, _ = start()

    with pytest.raises(SaslError, match=reason):
        conversation.send(answer)


def test_names_with_commas_and_equals_signs_are_escaped():
    conversation = sasl.scram("a,b=c", "p", algorithm="sha512", nonce="n")

    assert next(conversation) == b"n,,n=a=2Cb=3Dc,r=n"


def test_plain():
    assert next(sasl.plain("user", "pass")) == b"\0user\0pass"


def test_a_refused_token_is_an_error():
    conversation = sasl.oauthbearer("t0k3n")

    assert next(conversation) == b"n,,\x01auth=Bearer t0k3n\x01\x01"
    assert conversation.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(SaslError) as caught:
        conversation.send(b"")
    assert "t0k3n" not in str(caught.value)
