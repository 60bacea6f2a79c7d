"""Arguments that the database never sees: encrypted before they are enqueued, decrypted where they run.

    export PAYLOAD_KEYS=$(python -c 'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())')
    pgqueue worker -r encrypted.tasks

Needs `pip install cryptography`. Several keys, separated by commas: the first encrypts, each decrypts, so keys rotate
without an outage. What a job holds beside its arguments (task, queue, key, tags, headers, errors) is not encrypted, so
the error formatter leaves messages out. Equal payloads of an accumulating task are no longer equal: they do not
collapse.
"""

from __future__ import annotations

import json
import os
from typing import Any

from cryptography.fernet import Fernet, MultiFernet

from pgqueue import App


class Encrypted:
    """Keeps arguments as {"encrypted": token}. What comes without one, from SQL or a schedule, is read as it is."""

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

# Where a real one would talk to a bank.
on_charge = print


@app.task
def charge(card: str, amount: int) -> None:
    on_charge((card, amount))


@app.task(accumulate=True)
def tally(payloads: dict[str, list[Any]]) -> None:
    on_charge(payloads)
