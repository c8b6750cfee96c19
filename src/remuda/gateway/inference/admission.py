"""Authentication and authorisation of inference requests, from memory, before anything of a request's body
is read."""

from functools import lru_cache, partial
from typing import Final

from remuda.accounts.keys import ApiKey, KeyRing, KeyScope
from remuda.core.errors import Forbidden, RemudaError, Unauthorized
from remuda.core.hints import did_you_mean
from remuda.gateway.guards import host_problem, origin_problem, proxy_problem
from remuda.gateway.inference.endpoint import HeaderMap
from remuda.gateway.services import Access
from remuda.gateway.sessions import CONSOLE_HEADER, Sessions, cookie_in, is_from_console
from remuda.router.live_table import Tables
from remuda.router.loading import ModelUnknown
from remuda.router.table import RoutedModel

OWN_MODELS: Final = b"x-remuda-own-models"
_SEND_A_KEY: Final = "send it as Authorization: Bearer KEY; remuda keys create makes one"
_LATEST: Final = ":latest"
_HOSTS_KNOWN_MAX: Final = 256
_NAME_CHARS_MAX: Final = 100  # Of one that is quoted.


class InvalidKey(Unauthorized):
    code = "invalid_api_key"


class Admission:
    def __init__(self, access: Access, keyring: KeyRing, tables: Tables, sessions: Sessions) -> None:
        self._access = access
        self._keys_required = access.keys_required
        self._keyring = keyring
        self._tables = tables
        self._sessions = sessions
        self._host_problem = lru_cache(_HOSTS_KNOWN_MAX)(partial(_problem, access))

    def caller(self, headers: HeaderMap) -> ApiKey | None:
        """Whose key came with the request. None: no one's, which is enough on loopback, where keys limit
        nothing.

        Forbidden for a host or origin that is not ours, InvalidKey where a key is needed.
        """
        presented = _presented(headers)
        key = self._keyring.holder(presented) if presented else self._signed_in(headers)
        if self._keys_required:
            if key is None:
                raise InvalidKey(
                    self._keyring.trouble(presented) or "missing or invalid API key",
                    hint=self._keyring.remedy(presented) or _SEND_A_KEY,
                )
            return key
        problem = self._host_problem(headers.get(b"host", b""), headers.get(b"origin"))
        if problem := problem or proxy_problem(self._access, headers):
            raise Forbidden(problem)
        return key

    def asker(self, headers: HeaderMap) -> ApiKey | None:
        """The same for a request that a model is to answer. Forbidden with a key that may only read."""
        key = self.caller(headers)
        if self._keys_required and key is not None and key.scope is KeyScope.READ:
            raise Forbidden(
                f"the key {key.name!r} has the scope {key.scope}: it may not use models",
                hint="use a key of the scope inference",
            )
        return key

    def is_let_in(self, headers: HeaderMap) -> bool:
        """Whether a request that was let in before still would be."""
        try:
            self.asker(headers)
        except RemudaError:
            return False
        return True

    async def until_shut_out(self, headers: HeaderMap) -> None:
        """Returns when it is not let in any more, and not before."""
        while True:
            changed = self._keyring.changed
            if not self.is_let_in(headers):
                return
            await changed.wait()

    def _signed_in(self, headers: HeaderMap) -> ApiKey | None:
        """The key of the console's session. Forbidden where another web page may have made it ask."""
        cookie = headers.get(b"cookie")
        session = None if cookie is None else self._sessions.of(cookie_in(cookie.decode("latin-1")))
        if session is None:
            return None
        text = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        if not is_from_console(text, origin_problem):
            raise Forbidden(
                "this request does not show that it comes from the console",
                hint=f"send the header {CONSOLE_HEADER.title()}: 1, or an API key instead of a cookie",
            )
        return session.key

    def is_admin(self, key: ApiKey | None) -> bool:
        """On loopback everyone is one."""
        return not self._keys_required or (key is not None and key.scope is KeyScope.ADMIN)

    def may_see_nodes(self, key: ApiKey | None) -> bool:
        """Which machine answered is for admins."""
        return self.is_admin(key)

    def chosen_node(self, name: bytes, key: ApiKey | None) -> str:
        """The node, by its name, that alone may answer. Forbidden to those who may not see nodes."""
        if not self.may_see_nodes(key):
            raise Forbidden(
                "X-Remuda-Node chooses the node that answers, which takes a key of the scope admin",
                hint="leave the header out",
            )
        return name.decode("latin-1").strip()

    def model(self, name: str, key: ApiKey | None) -> RoutedModel:
        """The model of this name. ModelUnknown with similar names; Forbidden if the key is not for it."""
        name = self.meant(name)
        entry = self._tables.now.models.get(name)
        if entry is not None and entry.config.alias:
            entry = self._target(name, entry.config.alias)
        if entry is None:
            raise self.unknown(name, key)
        if not self._allows(key, name, entry):
            raise Forbidden(f"the key {key.name if key else ''!r} is not for the model {name!r}")
        return entry

    def meant(self, name: str) -> str:
        """The name of the model: clients of Ollama, which take /v1 for Ollama's, write `latest` behind it."""
        models = self._tables.now.models
        if name not in models and name.endswith(_LATEST) and name.removesuffix(_LATEST) in models:
            return name.removesuffix(_LATEST)
        return name

    def _target(self, name: str, alias: str) -> RoutedModel:
        entry = self._tables.now.models.get(alias)
        if entry is None or entry.config.alias:
            shown, meant = name[:_NAME_CHARS_MAX], alias[:_NAME_CHARS_MAX]
            raise ModelUnknown(
                f"{shown!r} is another name for {meant!r}, which does not exist",
                hint="add that model, or change the alias",
            )
        return entry

    def listed(self, key: ApiKey | None, headers: HeaderMap) -> dict[str, RoutedModel]:
        """What this caller can ask for now, by name. Another frontend that has adopted this one gets only
        what can run here: else two that have adopted each other would have each other's for ever."""
        own = OWN_MODELS in headers
        models = self._tables.now.models.items()
        listed = ((name, entry) for name, entry in models if entry.listed and (entry.ours or not own))
        return {name: entry for name, entry in listed if self._allows(key, name, entry)}

    def _allows(self, key: ApiKey | None, name: str, entry: RoutedModel) -> bool:
        if key is None or not key.models or not self._keys_required:
            return True
        return name in key.models or entry.config.id in key.models

    def unknown(self, name: str, key: ApiKey | None) -> ModelUnknown:
        """That there is no such model, with similar names that this caller can ask for."""
        shown = name[:_NAME_CHARS_MAX]
        models = self._tables.now.models
        known = [one for one, entry in models.items() if one != name and self._allows(key, one, entry)]
        hint = did_you_mean(shown, known, "GET /v1/models lists what there is")
        return ModelUnknown(f"there is no model {shown!r}", hint=hint)


def _presented(headers: HeaderMap) -> str:
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    chosen = value.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
    return chosen.decode("latin-1")


def _problem(access: Access, host: bytes, origin: bytes | None) -> str:
    return host_problem(access, host.decode("latin-1"), None if origin is None else origin.decode("latin-1"))
