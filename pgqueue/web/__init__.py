"""The operator's pages as an ASGI app, to mount in yours or to run with `pgqueue web`. Needs the extra `web`.

from pgqueue.web import User, dashboard

def authorize(request):
    return User("alice", {"read", "args", "act"}) if request.session.get("admin") else None

app.mount("/jobs", dashboard("postgresql://...", authorize=authorize))
"""

from pgqueue.web.app import dashboard
from pgqueue.web.users import EVERYTHING, Authorize, User, by_header, by_password

__all__ = ["EVERYTHING", "Authorize", "User", "by_header", "by_password", "dashboard"]
