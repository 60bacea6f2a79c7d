"""The App of a Django project, for `pgqueue worker -r pgqueue.contrib.django.worker`. Importing it sets Django up."""

import django
from django.apps import apps

from pgqueue.contrib.django.handlers import make_app

if not apps.ready:
    django.setup()

app = make_app()
