"""The lock of the SuperLink's control: one token.

It stands alone because what it needs of Flower takes long to import, and only the SuperLink needs it.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.superlink.auth_plugin import ControlAuthnPlugin

_Metadata = Sequence[tuple[str, str | bytes]]


class TokenPlugin(ControlAuthnPlugin):
    """Flower's account authentication with one account, whose access token is a secret of the SuperLink's owner."""

    def __init__(self, token: str = "") -> None:
        self.token = token

    def validate_tokens_in_metadata(self, metadata: _Metadata) -> tuple[bool, AccountInfo | None]:
        """Whether a request has the token, and whose it then is."""
        given = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
        if not self.token or not hmac.compare_digest(given.encode(), self.token.encode()):
            return False, None
        return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        """Nobody logs in by the network …"""
        return None

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        """… or gets a token there …"""
        return None

    def refresh_tokens(self, metadata: _Metadata) -> tuple[_Metadata | None, AccountInfo | None]:
        """… or a newer one: the token is in its file."""
        return None, None
