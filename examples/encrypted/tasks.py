"""Arguments that the database never sees: encrypted before they are enqueued, decrypted where they run.

    export PAYLOAD_KEYS=$(python -c 'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())')
    pgqueue worker -r examples.encrypted.tasks

Needs `pip install cryptography`. PAYLOAD_KEYS may hold several keys, separated by commas: the first one encrypts, all
of them decrypt. So keys rotate without an outage.

Only arguments are encrypted. Task, queue, key, tags, headers and errors are stored as they are; the error formatter
therefore leaves out messages. Equal payloads of an accumulating task are not equal once encrypted: each is handed over.
"""

from __future__ import annotations

import json
import os
from typing import Any

from cryptography.fernet import Fernet, MultiFernet

from pgqueue import App


class Encrypted:
    """Stores arguments as {"encrypted": token}. Arguments without a token, from SQL or a schedule, stay as they are."""

    def __init__(self, keys: str) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys.split(",")])

    def encode(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"encrypted": self._fernet.encrypt(json.dumps(args).encode()).decode()}

    def decode(self, args: dict[str, Any]) -> dict[str, Any]:
        if set(args) != {"encrypted"}:
            return args
        decoded: dict[str, Any] = json.loads(self._fernet.decrypt(args["encrypted"]))
        return decoded


def without_messages(error: BaseException) -> dict[str, Any]:
    return {"class": type(error).__qualname__, "message": "(withheld: it may quote arguments)"}


app = App(codec=Encrypted(os.environ["PAYLOAD_KEYS"]), error_formatter=without_messages)

# A real application would call a bank here.
on_charge = print


@app.task
def charge(card: str, amount: int) -> None:
    on_charge((card, amount))


@app.task(accumulate=True)
def tally(payloads: dict[str, list[Any]]) -> None:
    on_charge(payloads)
