"""HTTP without TLS. A client of httpx that is told nothing loads every certificate of the system, which takes
ten times as long as a request: `verify=PLAIN` spares that."""

import ssl
from typing import Final

PLAIN: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # It trusts nobody, and is not used.
