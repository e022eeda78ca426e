"""The organiser's server: Flower's SuperLink on loopback, the SuperExec that starts ServerApps, and the proxy in front.

Flower's SuperLink is started as by its own command, with two additions that the command does not offer: its Control API
accepts only calls with the organiser's credential, and what participants push is limited.
"""

import hmac
import os
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import uvicorn
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, AuthnType
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.http_logging import get_uvicorn_log_config
from flwr.supercore.logger import console_handler
from flwr.superlink.auth_plugin import ControlAuthnPlugin
from flwr.superlink.main import create_app

from cofair.errors import RunError
from cofair.flower.deploy import proxy, superexec
from cofair.flower.deploy.bounds import Bounds
from cofair.flower.deploy.environment import print_safely
from cofair.flower.deploy.keys import restrict_to_owner
from cofair.flower.deploy.names import ORGANISER
from cofair.flower.deploy.organiser import FILE, Organiser
from cofair.flower.deploy.ports import LOOPBACK, refuse_taken
from cofair.flower.deploy.watchdog import SupervisedProcess

FLOWER = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of the same name
Metadata = Sequence[tuple[str, str | bytes]]


class Credential(ControlAuthnPlugin):
    """Accepts calls of the Control API that carry the organiser's credential, a token in one of its files."""

    def __init__(self, token: str = "") -> None:
        """Take the token; without one no call is accepted."""
        self._token = token

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        """Return whether a call carries the token."""
        values = [value.encode() if isinstance(value, str) else value for _, value in metadata]
        if self._token and any(hmac.compare_digest(self._token.encode(), value) for value in values):
            return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)
        return False, None

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        """Return that there is no login: the credential is a file."""
        return AccountAuthLoginDetails(AuthnType.NOOP, "", "", 0, 0)

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        """Refuse: tokens are never handed out over the network."""
        raise FlowerError(ApiErrorCode.NO_ACCOUNT_AUTH, "The credential is a file of the organiser's.")

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        """Refuse: the token does not change."""
        return None, None


def serve(folder: Path) -> None:
    """Run the SuperLink of an organiser's folder, with all that belongs to it, until it is asked to end."""
    organiser = Organiser(folder)
    restrict_to_owner(organiser.folder)
    os.umask(0o077)
    os.chdir(organiser.folder)
    shutil.rmtree(organiser.folder / "home" / "apps", ignore_errors=True)  # Flower never repairs a half-installed app
    refuse_taken(organiser.settings.port, organiser.settings.listen, f"{FILE} (port)")
    refuse_taken(organiser.settings.inner_port, LOOPBACK, f"{FILE} (inner_port)")
    organiser.write_proxy()
    proxy.rotate_log(organiser.folder)
    print_safely()
    os.environ |= {**organiser.environment, ORGANISER: str(organiser.folder)}
    keys, address = organiser.folder / "keys", f"{LOOPBACK}:{organiser.settings.inner_port}"
    sys.argv = [
        "flower-superlink", "--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt"),
        "--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth", "--host", LOOPBACK,
        "--port", str(organiser.settings.inner_port), "--database", str(organiser.folder / "superlink.db"),
        "--isolation", "process", "--superexec-auth-secret-file", str(keys / "superexec.secret"),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    config = FLOWER._parse_superlink_lifespan_config()
    config.authn_plugin = Credential((keys / "control.token").read_text(encoding="ascii"))
    app = create_app(config, FLOWER.SuperLinkLifespan)
    app.add_middleware(Bounds, organiser=organiser.folder)
    _check(app)
    needed = [
        SupervisedProcess(proxy.command(organiser.folder)),
        SupervisedProcess(
            superexec.command(
                "flwr-serverapp", "--root-certificates", str(keys / "ca.crt"), "--runtime-api-address", address,
                "--superexec-auth-secret-file", str(keys / "superexec.secret"), "--parent-pid", str(os.getpid()),
            )
        ),
    ]  # fmt: skip
    print(f"The SuperLink is at {address}; participants call port {organiser.settings.port}.", flush=True)
    try:
        uvicorn.run(
            app, host=LOOPBACK, port=organiser.settings.inner_port, workers=1, ssl_certfile=str(keys / "server.crt"),
            ssl_keyfile=str(keys / "server.key"), log_config=get_uvicorn_log_config(console_handler.level),
        )  # fmt: skip
    finally:
        for process in needed:
            process.stop()


def _check(app: object) -> None:
    """Refuse to start if this version of Flower ignored our settings, because then it would let anybody in."""
    state = app.state  # type: ignore[attr-defined]  # of FastAPI
    guarded = isinstance(getattr(getattr(state, "account_access_dep", None), "authn_plugin", None), Credential)
    if not guarded or not getattr(state, "superexec_auth_secret", None) or not state.enable_supernode_auth:
        raise RunError(
            "This version of Flower does not check the credential of its Control API: run pip install 'cofair[flower]'."
        )
