"""What somebody can send to a deployment: calls of Flower's APIs with any certificate, key, credential and content."""

import base64
import datetime
import socket
import ssl
import time

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES


def paths(api):
    """Return what an API of this version of Flower offers, and the request that each call takes."""
    return {path: kind for (_, path), kind in PROTOBUF_REQUEST_TYPES.items() if path.startswith(f"/v1/{api}/")}


def key_of(folder):
    """Return the private key of a participant's folder."""
    return serialization.load_pem_private_key((folder / "node.key").read_bytes(), None)


def signed(key, public=None):
    """Return the headers by which Flower knows a node; `public` claims another key than the one that signs."""
    timestamp = datetime.datetime.now(datetime.UTC).isoformat()
    known = public_key_to_bytes(key.public_key() if public is None else public)
    return {
        "flwr-public-key": base64.b64encode(known).decode(),
        "flwr-timestamp": timestamp,
        "flwr-signature": base64.b64encode(sign_message(key, timestamp.encode())).decode(),
    }


class Caller:
    """Calls one port with or without a certificate."""

    def __init__(self, port, authority, certificate=None, key=None, host="127.0.0.1"):
        context = ssl.create_default_context(cafile=str(authority))
        if certificate is not None:
            context.load_cert_chain(str(certificate), str(key))
        self.context = context
        self.client = httpx.Client(verify=context, timeout=20, trust_env=False)
        self.address = f"https://{host}:{port}"

    def __call__(self, path, request=None, **headers):
        """Return the status of a call's answer, or "no connection"."""
        try:
            return self.response(path, request, **headers).status_code
        except httpx.TransportError:
            return "no connection"

    def response(self, path, request=None, **headers):
        body = request if isinstance(request, bytes) else b"" if request is None else request.SerializeToString()
        kinds = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        return self.client.post(f"{self.address}{path}", content=body, headers={**kinds, **headers})


def raw(caller, path, body=b"", method="POST", **headers):
    """Return the status of a call whose path is sent as it is written: httpx would tidy it up."""
    host, port = caller.address.removeprefix("https://").rsplit(":", 1)
    lines = {"host": f"{host}:{port}", "content-type": "application/protobuf", "content-length": len(body), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        caller.context.wrap_socket(plain, server_hostname=host) as wire,
    ):
        wire.sendall(f"{method} {path} HTTP/1.1\r\n{head}connection: close\r\n\r\n".encode() + body)
        answer = wire.recv(4096)
    return int(answer.split(b" ", 2)[1])


def participant(federation, name, **changes):
    """Return a caller that has what an admitted participant has."""
    own = federation.participant(name)
    given = {"certificate": own / "node.crt", "key": own / "node.key", **changes}
    return Caller(federation.port, own / "ca.crt", **given)


def node_number(caller, key):
    """Return the number under which Flower knows an admitted participant."""
    request, answer = activation(key), ActivateNodeResponse()
    until = time.monotonic() + 20
    while (response := caller.response("/v1/fleet/activate-node", request, **signed(key))).status_code == 401:
        assert time.monotonic() < until, "the proxy does not know who was admitted"
        time.sleep(0.1)
    assert response.status_code == 200, response.text
    answer.ParseFromString(response.content)
    return answer.node_id


def activation(key):
    """Return the request by which a node says that it is there."""
    return ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30)


def self_signed(folder, key, name="a"):
    """Write a certificate that its holder signed itself, and return it."""
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA384())
    )
    path = folder / f"self-signed-{name}.crt"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return path


def new_key():
    return ec.generate_private_key(ec.SECP384R1())
