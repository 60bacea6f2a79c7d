from django.contrib import admin
from django.urls import path

# As views do.
from shop import tasks

urlpatterns = [path("admin/", admin.site.urls)]

__all__ = ["tasks", "urlpatterns"]
