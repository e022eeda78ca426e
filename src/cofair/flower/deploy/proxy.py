"""The only way in from outside: nginx, which lets admitted participants reach the Fleet API and nothing else.

Flower serves its Fleet, Control and Runtime APIs on one port. That port is on loopback; nginx listens outside, asks for
a certificate of the federation's authority, compares it with the key that the call is signed with, and forwards the
calls that a SuperNode needs. It limits the size and duration of requests before Flower reads anything.
"""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from cofair.errors import UsageError
from cofair.flower.deploy import keys
from cofair.storage.folder import write_whole

LARGEST_REQUEST = 8 * 2**20  # bytes of a call that pushes an object: Flower sends arrays in pieces of 5 MiB
_LARGEST_OTHER = 2**18  # bytes of any other call, which carries no arrays
CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
_FOLDER = "proxy"

_CONFIGURATION = """\
# Written by cofair from the certificates in participants/: 'cofair deploy admit' and 'remove' change it.
{user}daemon off;
pid proxy/nginx.pid;
error_log stderr error;
worker_processes 1;
worker_shutdown_timeout 10s;

events {{ worker_connections 1024; }}

http {{
    server_tokens off;
    map_hash_bucket_size 1024;
    log_format calls '$time_iso8601 $remote_addr "$participant" $ssl_client_serial $request_method $uri $status '
                     '$request_length $bytes_sent $request_time';
    # calls that ask for work come every few seconds, and are not worth a line while they succeed
    map "$uri $status" $worth_logging {{
        default 1;
        "~^/v1/fleet/(pull-messages|send-node-heartbeat) 200$" 0;
    }}
    access_log proxy/access.log calls if=$worth_logging;
    client_body_temp_path proxy/bodies;
    proxy_temp_path proxy/answers;
    fastcgi_temp_path proxy/none;
    uwsgi_temp_path proxy/none;
    scgi_temp_path proxy/none;

    # a certificate is for one key: the serial number and the key that signs the call must belong together
    map "$ssl_client_serial $http_flwr_public_key" $participant {{
        default "";
{admitted}    }}
    limit_req_zone $ssl_client_serial zone=calls:1m rate=200r/s;
    limit_conn_zone $ssl_client_serial zone=connections:1m;

    upstream superlink {{
        server 127.0.0.1:{inner_port};
        keepalive 16;
    }}

    server {{
        listen {listen}:{port} ssl;
        ssl_certificate ../keys/server.crt;
        ssl_certificate_key ../keys/server.key;
        ssl_client_certificate ../keys/ca.crt;
        ssl_verify_client on;
        ssl_verify_depth 1;
        ssl_protocols TLSv1.2 TLSv1.3;

        client_max_body_size {largest_other};
        client_body_buffer_size 1m;
        client_header_timeout 10s;
        client_body_timeout 30s;
        send_timeout 60s;
        # a certificate that has expired is noticed within minutes, also on a connection that stays open
        keepalive_time 5m;
        ssl_session_tickets off;
        ssl_session_cache off;

        limit_req zone=calls burst=1000 nodelay;
        limit_conn connections 32;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_ssl_trusted_certificate ../keys/ca.crt;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_read_timeout 60s;

{calls}
        location / {{ return 404; }}
    }}
}}
"""

# matched by its exact name and forwarded under that name: nothing that a participant writes ends up in the path
_CALL = """\
        location = /v1/fleet/{call} {{
            limit_except POST {{ deny all; }}
            if ($participant = "") {{ return 401; }}
            client_max_body_size {largest};
            proxy_pass https://superlink/v1/fleet/{call};
        }}
"""


def program() -> str:
    """Return where nginx is; distributions install it where only administrators look."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
    if found is None:
        raise UsageError("This needs nginx, which lets participants in: install it with 'apt-get install nginx-light'.")
    return found


def write(organiser: Path, listen: str, port: int, inner_port: int) -> None:
    """Write nginx's configuration for every participant with a certificate in the organiser's folder participants/."""
    (organiser / _FOLDER).mkdir(mode=0o700, exist_ok=True)
    text = _CONFIGURATION.format(
        user="user root root;\n" if os.getuid() == 0 else "",  # a worker run by another user could not read this folder
        admitted="".join(_lines(sorted((organiser / "participants").glob("*.crt")))),
        listen=f"[{listen}]" if ":" in listen else listen,
        port=port,
        inner_port=inner_port,
        largest_other=_LARGEST_OTHER,
        calls="".join(
            _CALL.format(call=call, largest=LARGEST_REQUEST if call == "push-object" else _LARGEST_OTHER)
            for call in CALLS
        ),
    )
    write_whole(organiser / _FOLDER / "nginx.conf", text)


def command(organiser: Path, *more: str) -> list[str]:
    """Return the command that runs nginx in an organiser's folder."""
    # its own messages go to stderr from the first line on; the configuration never contains the folder's path
    return [program(), "-p", f"{organiser.resolve()}/", "-c", f"{_FOLDER}/nginx.conf", "-e", "stderr", *more]


def rotate_log(organiser: Path) -> None:
    """Move the log of the last start aside, replacing that of the start before."""
    log = organiser / _FOLDER / "access.log"
    if log.exists():
        log.replace(log.with_suffix(".log.1"))


def is_running(organiser: Path) -> bool:
    """Return whether the proxy of a folder is running; after a power cut, another process may have its number."""
    try:
        number = int((organiser / _FOLDER / "nginx.pid").read_text())
        os.kill(number, 0)
        return not Path("/proc/self").exists() or Path(f"/proc/{number}/comm").read_text().strip() == "nginx"
    except (OSError, ValueError):
        return False


def _lines(certificates: Iterable[Path]) -> Iterable[str]:
    for path in certificates:
        certificate = keys.read_certificate(path)
        serial, key = f"{certificate.serial_number:X}", keys.flower_header(certificate)
        serial = serial.zfill(len(serial) + len(serial) % 2)  # as nginx writes it: whole bytes
        assert re.fullmatch(r"[A-Za-z0-9+/=]+", key)
        assert re.fullmatch(r"[A-Za-z0-9._-]+", path.stem)
        yield f'        "{serial} {key}" "{path.stem}";\n'
