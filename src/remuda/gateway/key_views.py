"""API keys in the words of the API, without their secrets."""

from dataclasses import fields
from datetime import datetime
from typing import Final

from remuda.accounts.keys import ApiKey
from remuda.accounts.terms import KeyTerms
from remuda.wire.admin import KeyView

TERMS: Final = tuple(one.name for one in fields(KeyTerms))


def key_view(key: ApiKey, now: datetime) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        scope=key.scope,
        hint=key.hint,
        created_at=key.created_at,
        models=key.models,
        state=key.state(now).value,
        last_used_at=key.last_used_at,
        **{name: getattr(key.terms, name) for name in TERMS},
    )
