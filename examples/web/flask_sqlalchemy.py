"""Flask with SQLAlchemy; the worker is a separate process."""

from flask import Flask, request
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from examples.web.queue import DSN, send_receipt

api = Flask(__name__)
sessions = sessionmaker(create_engine(DSN.replace("postgresql:", "postgresql+psycopg:")))


@api.post("/orders")
def place_order():
    email = request.args["email"]
    key = request.headers.get("Idempotency-Key")
    with sessions.begin() as db:
        db.execute(text("insert into orders (email) values (:email)"), {"email": email})
        return {"job": send_receipt.using(dedupe=key).enqueue(db, email)}
